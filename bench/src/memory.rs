//! The memory that this process has in use.

/// The bytes that are allocated and not freed, by the allocator's own count; `None` if the C
/// library does not report it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[must_use]
pub fn allocated_bytes() -> Option<u64> {
    // SAFETY: the call takes no arguments, and only reads the allocator's counters under its own
    // locks.
    let counted = unsafe { libc::mallinfo2() };
    Some((counted.uordblks + counted.hblkhd) as u64)
}

/// Always `None`: this C library does not report it.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
#[must_use]
pub fn allocated_bytes() -> Option<u64> {
    None
}
