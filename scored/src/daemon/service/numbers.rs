//! Job numbers: a server that was started again does not begin with those of its predecessor, whose
//! jobs somebody may still speak of.

use std::fs;
use std::path::PathBuf;

/// What outlives a daemon.
const FOLDER: &str = "/var/lib/scored";
const FILE: &str = "/var/lib/scored/next-job";
/// Numbers that are set aside at once.
const BLOCK: u32 = 1000;

/// Which numbers may be given.
#[derive(Debug)]
pub struct Numbers {
    first: u32,
    /// The file says that everything below may have been given.
    reserved: u32,
}

impl Numbers {
    /// As the last server left it.
    pub fn load() -> Self {
        let text = fs::read_to_string(FILE).unwrap_or_default();
        let first = text.trim().parse().ok().filter(|next| (1..i32::MAX as u32).contains(next));
        let first = first.unwrap_or(1);
        let mut numbers = Self { first, reserved: first };
        numbers.given(first);
        numbers
    }

    /// The first number.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// This number is used.
    pub fn given(&mut self, number: u32) {
        if number >= self.reserved || self.reserved - number > 2 * BLOCK {
            self.reserved = number.saturating_add(BLOCK);
            let new = PathBuf::from(format!("{FILE}.new"));
            let written = fs::create_dir_all(FOLDER)
                .and_then(|()| fs::write(&new, format!("{}\n", self.reserved)));
            if let Err(error) = written.and_then(|()| fs::rename(&new, FILE)) {
                super::warn(&format!("{FILE}: {error}: a restarted server repeats job numbers"));
            }
        }
    }
}
