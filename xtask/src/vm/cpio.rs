//! Writes the archive that a kernel unpacks into its first file system (format "newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst of the kernel).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const MODE_DIRECTORY: u32 = 0o040_000;
const MODE_REGULAR: u32 = 0o100_000;
const MODE_CHAR_DEVICE: u32 = 0o020_000;

/// An archive in memory.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    entry_count: u32,
}

impl Archive {
    /// Adds a directory and its parents.
    pub fn add_directory(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.add_directory(parent);
        }
        if !path.is_empty() && self.directories.insert(path.into()) {
            self.add_entry(path, MODE_DIRECTORY | 0o755, &[], 0);
        }
    }

    /// Adds a file with these contents.
    pub fn add_file(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.add_parent(path);
        self.add_entry(path, MODE_REGULAR | mode, contents, 0);
    }

    /// Adds a copy of a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn add_copy_of(&mut self, path: &str, from: &Path) -> Result<(), String> {
        let io_error = |error: std::io::Error| format!("{}: {error}", from.display());
        let contents = fs::read(from).map_err(io_error)?;
        let mode = fs::metadata(from).map_err(io_error)?.permissions().mode() & 0o777;
        self.add_file(path, mode, &contents);
        Ok(())
    }

    /// Adds the console device, which the kernel opens before it mounts anything.
    pub fn add_console(&mut self) {
        self.add_directory("dev");
        self.add_entry("dev/console", MODE_CHAR_DEVICE | 0o600, &[], 5 << 8 | 1);
    }

    fn add_parent(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.add_directory(parent);
        }
    }

    fn add_entry(&mut self, path: &str, mode: u32, contents: &[u8], device: u32) {
        self.entry_count += 1;
        let (major, minor) = (device >> 8, device & 0xff);
        let (contents_len, name_len) = (contents.len(), path.len() + 1);
        let fields: [usize; 13] = [
            self.entry_count as usize,
            mode as usize,
            0,
            0,
            1,
            0,
            contents_len,
            0,
            0,
            major as usize,
            minor as usize,
            name_len,
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns the complete archive. Other archives may be appended to it.
    pub fn finish(mut self) -> Vec<u8> {
        self.add_entry("TRAILER!!!", 0, &[], 0);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn directories_precede_their_files_and_entries_are_aligned() {
        let mut archive = Archive::default();
        archive.add_file("a/b/c", 0o644, b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 512, 0);
        let text = String::from_utf8_lossy(&bytes);
        let header_offsets: Vec<usize> =
            text.match_indices("070701").map(|(offset, _)| offset).collect();
        assert_eq!(header_offsets.len(), 4, "a, a/b, a/b/c and the end");
        assert!(header_offsets.iter().all(|offset| offset % 4 == 0));
        assert!(text.find("a/b\0").unwrap() < text.find("a/b/c\0").unwrap());
    }
}
