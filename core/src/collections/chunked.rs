//! A vector that grows without copying its elements: chunks of a fixed size behind a short table.
//!
//! Growing a plain vector of a million deadlines copies megabytes at once, on the server's only
//! thread.

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

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }

    pub(crate) fn push(&mut self, value: T) {
        let at = self.len / CHUNK;
        if at == self.chunks.len() {
            // The first chunk grows on demand: a queue of one place must not cost a whole chunk.
            self.chunks.push(if at == 0 { Vec::new() } else { Vec::with_capacity(CHUNK) });
        }
        if let Some(chunk) = self.chunks.get_mut(at) {
            chunk.push(value);
            self.len = self.len.saturating_add(1);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let at = last / CHUNK;
        let value = self.chunks.get_mut(at)?.pop()?;
        self.len = last;
        // Keeps one empty chunk: a length that oscillates across a chunk border does not allocate.
        self.chunks.truncate(at.saturating_add(2));
        Some(value)
    }

    /// Takes over the chunks of `other`, for [`Chunked::drop_chunk`] to drop them one by one.
    pub(crate) fn take_over(&mut self, other: Self) {
        self.chunks.extend(other.chunks);
        self.len = self.len.saturating_add(other.len);
    }

    /// Drops the last chunk and its elements.
    pub(crate) fn drop_chunk(&mut self) {
        self.chunks.pop();
        self.len = self.len.min(self.chunks.len().saturating_mul(CHUNK));
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
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn behaves_like_a_vector() {
        let mut chunked = Chunked::default();
        for number in 0..3000 {
            chunked.push(number);
        }
        assert_eq!(chunked.len(), 3000);
        assert_eq!((chunked.get(0), chunked.get(1024), chunked.get(3000)), (Some(&0), Some(&1024), None));
        for number in (1000..3000).rev() {
            assert_eq!(chunked.pop(), Some(number));
        }
        assert_eq!((chunked.len(), chunked.get(999), chunked.get(1000)), (1000, Some(&999), None));
        chunked.push(7);
        assert_eq!((chunked.len(), chunked.get(1000)), (1001, Some(&7)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries")]
    fn oscillating_length_keeps_its_chunks() {
        for border in [0, CHUNK, 3 * CHUNK] {
            let mut chunked = Chunked::default();
            for number in 0..=border {
                chunked.push(number);
            }
            let bytes = chunked.heap_bytes();
            for _ in 0..3 {
                chunked.pop();
                assert_eq!(chunked.heap_bytes(), bytes);
                chunked.push(7);
                assert_eq!(chunked.heap_bytes(), bytes);
            }
        }
        let mut chunked = Chunked::default();
        for number in 0..10 * CHUNK {
            chunked.push(number);
        }
        while chunked.pop().is_some() {}
        assert!(chunked.chunks.len() <= 2);
    }
}
