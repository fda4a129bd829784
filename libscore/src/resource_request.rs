//! The first role of `score_initialize` (manual 1.4.2, steps 2 and 3): to say what the program
//! needs, and to go no further.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use score_proto::elf_note;

static REQUESTED_NODES: Mutex<Option<(u32, u32)>> = Mutex::new(None);

/// Asks for at least `min` and at most `max` nodes; to be called before [`crate::initialize`], in
/// a program that declares `SCORE_RSRC_RUN`. The last call counts. False, and nothing is changed,
/// when no number of nodes can meet it. Without effect when the program is not run for its request.
pub fn request_nodes(min: u32, max: u32) -> bool {
    if min.max(1) > max {
        return false;
    }
    *REQUESTED_NODES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some((min, max));
    true
}

/// Writes the request.
///
/// # Errors
/// Why it could not be written.
pub(crate) fn write(to: OwnedFd) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    elf_note::write(elf_note::LIBSCORE, &[crate::elf_note::version()], &mut bytes);
    let nodes = *REQUESTED_NODES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((min, max)) = nodes {
        elf_note::write(elf_note::NUM_NODES, &[min, max], &mut bytes);
    }
    std::fs::File::from(to).write_all(&bytes)
}
