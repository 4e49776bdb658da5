//! The server does nothing else while the module asks for memory, and least of all while a table is copied into a larger one. So what
//! grows with what clients send grows by small pieces: no allocation is as large as a table of all that is there.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rlock_core::Channels;

thread_local! {
    /// The largest piece of memory that this thread has asked for.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Watching;

#[global_allocator]
static WATCHING: Watching = Watching;

// SAFETY: all is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // When a thread ends, this may be gone before its last allocation is.
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory is from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

const CHANNELS: u32 = 100_000;
const SMALL_BYTES: usize = 4096;

#[test]
fn a_channel_that_comes_to_a_great_many_costs_no_more_than_any_other() {
    let mut channels = Channels::<u64>::default();
    let mut known = Vec::with_capacity(CHANNELS as usize);
    LARGEST.set(0);
    for number in 0..CHANNELS {
        let channel = channels.add(format!("reply:{number:036}").as_bytes()).expect("a number");
        channels.hold(channel);
        known.push(channel);
    }
    assert!(LARGEST.get() <= SMALL_BYTES, "{} bytes at once", LARGEST.get());
    for channel in known {
        assert!(channels.let_go(channel).is_some());
    }
    assert!(LARGEST.get() <= SMALL_BYTES, "{} bytes at once, when they go", LARGEST.get());
}
