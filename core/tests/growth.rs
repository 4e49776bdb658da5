//! Tables that clients can make large grow in small pieces: no single allocation is as large as the
//! whole table. Otherwise the server's only thread would stall while a table is copied into a
//! larger one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rlock_core::Channels;

thread_local! {
    /// The largest allocation of this thread so far.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Watching;

#[global_allocator]
static WATCHING: Watching = Watching;

// SAFETY: each call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // While a thread ends, it may allocate after `LARGEST` was destroyed.
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller guarantees what the system's allocator requires.
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
fn large_channel_table_grows_and_shrinks_without_large_allocations() {
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
    assert!(LARGEST.get() <= SMALL_BYTES, "{} bytes at once while the channels are removed", LARGEST.get());
}
