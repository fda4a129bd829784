//! Random bytes of the kernel (getrandom(2)). They need no descriptor, so that a user who has used
//! up all descriptors cannot prevent the creation of a secret.

use std::io;

/// `N` random bytes.
///
/// # Errors
/// The kernel provides no random bytes.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// A random number.
///
/// # Panics
/// The kernel provides no random bytes. Linux provides them since version 3.17, unless a filter of
/// system calls forbids it.
pub fn random_u64() -> u64 {
    u64::from_ne_bytes(random_bytes().expect("getrandom(2) succeeds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_random_numbers_differ() {
        assert_ne!(random_u64(), random_u64());
    }

    #[test]
    fn all_of_the_bytes_are_random() {
        let halves: [u8; 1024] = random_bytes().unwrap();
        // The probability that eight adjacent bytes are zero is below 2^-54.
        assert!(halves.chunks(8).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
    }
}
