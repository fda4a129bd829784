//! Shared memory without a file name (memfd_create(2)), and the seals that protect its users. A
//! process that accesses a mapping gets SIGBUS if another process has shrunk the object. Therefore
//! the creator of an object seals it, and a receiver checks the seals.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// The operations that no process can perform on an object any more. No seal can be added later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seals {
    /// Change the size.
    Size,
    /// Change the size, or write.
    SizeAndContent,
    /// Change the size, or write except through an existing mapping. Requires Linux 5.1.
    SizeAndNewWriters,
}

impl Seals {
    fn flags(self) -> SealFlag {
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        match self {
            Self::Size => size,
            Self::SizeAndContent => size | SealFlag::F_SEAL_WRITE,
            Self::SizeAndNewWriters => size | SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE),
        }
    }
}

/// Creates an empty object. `name` appears in /proc/PID/fd and /proc/PID/maps.
///
/// # Errors
/// See memfd_create(2).
pub fn create(name: &str) -> io::Result<File> {
    Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?.into())
}

/// Creates an object of zeroes that cannot be resized.
///
/// # Errors
/// See memfd_create(2) and ftruncate(2).
pub fn create_sealed(name: &str, len: u64) -> io::Result<OwnedFd> {
    let file = create(name)?;
    file.set_len(len)?;
    seal(&file, Seals::Size)?;
    Ok(file.into())
}

/// Seals an object.
///
/// # Errors
/// See fcntl(2). The object has F_SEAL_SEAL, or a mapping contradicts the seals.
pub fn seal(memfd: impl AsFd, seals: Seals) -> io::Result<()> {
    fcntl(memfd, FcntlArg::F_ADD_SEALS(seals.flags()))?;
    Ok(())
}

/// The length of an object of another process. Returns `None` if the object lacks one of the seals.
///
/// # Errors
/// See fcntl(2) and fstat(2). EINVAL: the descriptor is not a memfd.
pub fn sealed_len(memfd: impl AsFd, seals: Seals) -> io::Result<Option<u64>> {
    let current = SealFlag::from_bits_retain(fcntl(memfd.as_fd(), FcntlArg::F_GET_SEALS)?);
    let len = nix::sys::stat::fstat(memfd)?.st_size;
    Ok(current.contains(seals.flags()).then_some(len.cast_unsigned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const ALL: [Seals; 3] = [Seals::Size, Seals::SizeAndContent, Seals::SizeAndNewWriters];

    fn sealed(seals: Seals) -> File {
        let file = create("score-test").unwrap();
        file.set_len(4096).unwrap();
        seal(&file, seals).unwrap();
        file
    }

    #[test]
    fn a_sealed_object_keeps_its_size_and_its_seals() {
        for seals in ALL {
            let file = sealed(seals);
            assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err(), "{seals:?}");
            assert_eq!(file.write_at(b"x", 0).is_ok(), seals == Seals::Size, "{seals:?}");
            for more in ALL {
                assert!(seal(&file, more).is_err(), "{seals:?}");
            }
        }
    }

    #[test]
    fn a_length_is_reported_only_if_all_seals_are_set() {
        let file = create("score-test").unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(sealed_len(&file, Seals::Size).unwrap(), None);
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert_eq!(sealed_len(&file, Seals::Size).unwrap(), None);
        for seals in ALL {
            let file = sealed(seals);
            assert_eq!(sealed_len(&file, Seals::Size).unwrap(), Some(4096));
            for other in [Seals::SizeAndContent, Seals::SizeAndNewWriters] {
                let len = (seals == other).then_some(4096);
                assert_eq!(sealed_len(&file, other).unwrap(), len, "{seals:?} {other:?}");
            }
        }
    }

    #[test]
    fn an_object_is_created_with_zeroes_and_its_length() {
        let memfd = create_sealed("score-test", 8192).unwrap();
        assert_eq!(sealed_len(&memfd, Seals::Size).unwrap(), Some(8192));
        let mut bytes = [1; 8];
        File::from(memfd).read_exact_at(&mut bytes, 8184).unwrap();
        assert_eq!(bytes, [0; 8]);
    }

    #[test]
    fn a_regular_file_has_no_seals() {
        let file = File::open("/proc/self/exe").unwrap();
        let error = sealed_len(&file, Seals::Size).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
