//! How much memory this process has in use.

/// What is allocated and not freed, by the allocator's own count; `None` where the C library does not tell.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[must_use]
pub fn allocated_bytes() -> Option<u64> {
    // SAFETY: the call takes nothing, and only reads the allocator's counters under its own locks.
    let counted = unsafe { libc::mallinfo2() };
    Some((counted.uordblks + counted.hblkhd) as u64)
}

/// The same: nobody tells here.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[must_use]
pub fn allocated_bytes() -> Option<u64> {
    None
}
