//! The archive that a kernel unpacks into its first file system ("newc", Documentation/
//! driver-api/early-userspace/buffer-format.rst of the kernel).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CONSOLE: u32 = 0o020_000;

/// An archive that grows in memory.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// A folder, and those above it.
    pub fn folder(&mut self, path: &str) {
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        if !path.is_empty() && self.folders.insert(path.into()) {
            self.entry(path, FOLDER | 0o755, &[], 0);
        }
    }

    /// A file with these contents.
    pub fn file(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.above(path);
        self.entry(path, FILE | mode, contents, 0);
    }

    /// A copy of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn copy(&mut self, path: &str, from: &Path) -> Result<(), String> {
        let told = |error: std::io::Error| format!("{}: {error}", from.display());
        let contents = fs::read(from).map_err(told)?;
        let mode = fs::metadata(from).map_err(told)?.permissions().mode() & 0o777;
        self.file(path, mode, &contents);
        Ok(())
    }

    /// The console, which the kernel opens before anything is mounted.
    pub fn console(&mut self) {
        self.folder("dev");
        self.entry("dev/console", CONSOLE | 0o600, &[], 5 << 8 | 1);
    }

    fn above(&mut self, path: &str) {
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8], device: u32) {
        self.entries += 1;
        let (major, minor) = (device >> 8, device & 0xff);
        let (size, name) = (contents.len(), path.len() + 1);
        let fields: [usize; 13] = [
            self.entries as usize,
            mode as usize,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            major as usize,
            minor as usize,
            name,
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

    /// All of it, to be followed by others.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], 0);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn folders_come_before_what_is_in_them_and_all_is_aligned() {
        let mut archive = Archive::default();
        archive.file("a/b/c", 0o644, b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 512, 0);
        let text = String::from_utf8_lossy(&bytes);
        let heads: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(heads.len(), 4, "a, a/b, a/b/c and the end");
        assert!(heads.iter().all(|at| at % 4 == 0));
        assert!(text.find("a/b\0").unwrap() < text.find("a/b/c\0").unwrap());
    }
}
