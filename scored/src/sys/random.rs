//! Unpredictable random numbers.

// UNSAFETY: getrandom(2) has no safe wrapper here.
#![expect(unsafe_code)]

/// A random number from the kernel. It needs no descriptor. It therefore cannot fail if a user has
/// used up all descriptors, on which the secrets of jobs would otherwise depend.
pub fn random_u64() -> u64 {
    let mut bytes = [0_u8; 8];
    // SAFETY: getrandom writes at most so many bytes to the array. Up to 256 bytes are never
    // interrupted once the kernel has its seed (getrandom(2)).
    let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert_eq!(count, 8, "getrandom(2) failed");
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_random_numbers_differ() {
        assert_ne!(super::random_u64(), super::random_u64());
    }
}
