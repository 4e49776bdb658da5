//! A vector that grows without copying what it has: chunks of a fixed size behind a short table.
//!
//! Growing a plain vector of a million deadlines copies megabytes at once, on the server's only thread.

use alloc::vec::Vec;

const CHUNK: usize = 1024;

#[derive(Clone)]
pub(crate) struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Chunked<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    pub(crate) fn push(&mut self, value: T) {
        if self.len.is_multiple_of(CHUNK) {
            // The first grows as it needs: a queue of one place must not cost a whole chunk.
            self.chunks.push(if self.len == 0 { Vec::new() } else { Vec::with_capacity(CHUNK) });
        }
        if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(value);
            self.len = self.len.saturating_add(1);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let value = self.chunks.last_mut()?.pop()?;
        self.len = self.len.saturating_sub(1);
        if self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
        }
        Some(value)
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = T> {
        self.chunks.into_iter().flatten()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let places: usize = self.chunks.iter().map(Vec::capacity).sum();
        places.saturating_mul(size_of::<T>()).saturating_add(self.chunks.capacity().saturating_mul(size_of::<Vec<T>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_vector() {
        let mut chunked = Chunked::default();
        for number in 0..3000 {
            chunked.push(number);
        }
        assert_eq!(chunked.len(), 3000);
        assert_eq!((chunked.get(0), chunked.get(1024), chunked.get(3000)), (Some(&0), Some(&1024), None));
        for number in (1000..3000).rev() {
            assert_eq!(chunked.pop(), Some(number));
        }
        chunked.push(7);
        assert_eq!((chunked.len(), chunked.get(1000)), (1001, Some(&7)));
        assert_eq!(chunked.into_iter().count(), 1001);
    }
}
