//! Writes files in directories that a user may change at any time.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Writes a new file, after removing an existing file of the same name. Neither follows a link nor
/// opens a FIFO that a user has put there. Opening a FIFO would wait for its reader.
///
/// # Errors
/// The errors of open(2) and write(2). Also an error if a directory has the name, or if another
/// process has created the name in the meantime.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;

    #[test]
    fn links_and_fifos_are_replaced_and_never_followed() {
        let folder = std::env::temp_dir().join(format!("score-new-file-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let [name, target] = ["name", "target"].map(|name| folder.join(name));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &name).unwrap();
        write_new(&name, b"one").unwrap();
        fs::remove_file(&name).unwrap();
        // No process reads the FIFO.
        nix::unistd::mkfifo(&name, Mode::S_IRWXU).unwrap();
        write_new(&name, b"two").unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"two");
        write_new(&name, b"three").unwrap();
        assert_eq!(
            (fs::read(&name).unwrap(), fs::read(&target).unwrap()),
            (b"three".into(), b"kept".into())
        );
        fs::remove_file(&name).unwrap();
        fs::create_dir(&name).unwrap();
        assert!(write_new(&name, b"four").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
