//! Counts allocated bytes per thread. On a single-threaded runtime, other tests do not disturb the
//! count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed. Negative if it frees memory that other
    /// threads allocated.
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn count(change: isize) {
    // When a thread ends, its counter may be destroyed before its last deallocation.
    let _ = LIVE.try_with(|live| live.set(live.get() + change));
}

fn size(layout: Layout) -> isize {
    isize::try_from(layout.size()).unwrap_or(isize::MAX)
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: as above; the memory is from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Bytes that this thread has allocated and not freed.
pub fn live_bytes() -> isize {
    LIVE.with(Cell::get)
}
