//! The role of `score_initialize` in which it only writes the resource request of the program
//! (manual 1.4.2, steps 2 and 3).

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use score_proto::elf_note;

static REQUESTED_NODES: Mutex<Option<(u32, u32)>> = Mutex::new(None);

/// Requests at least `min` and at most `max` nodes. Call it before [`crate::initialize`], in a
/// program that declares `SCORE_RSRC_RUN`. The last call takes effect. Returns false, and changes
/// nothing, if no number of nodes is within the limits. The call has an effect only if scrun runs
/// the program to get its resource request.
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
/// The write has failed.
pub(crate) fn write(to: OwnedFd) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    elf_note::write(elf_note::LIBSCORE, &[crate::elf_note::version()], &mut bytes);
    let nodes = *REQUESTED_NODES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((min, max)) = nodes {
        elf_note::write(elf_note::NUM_NODES, &[min, max], &mut bytes);
    }
    std::fs::File::from(to).write_all(&bytes)
}
