//! The state of a composite, which is the state of its members.

#![forbid(unsafe_code)]

use super::Composite;
use crate::config::QueueStatus;
use crate::device::{StateInterface, on};
use crate::error::{Error, PmResult};
use std::io::Write;

/// "SCPMCMP" and the version of the format. The number of members follows, then for each member the
/// length of its saved state and the state.
const SAVE_MAGIC: u64 = u64::from_le_bytes(*b"SCPMCMP\x01");

impl Composite {
    pub(crate) fn is_send_done(&self) -> PmResult<()> {
        self.routing.members().try_for_each(|(_, member)| on!(member, e => e.is_send_done()))
    }

    pub(crate) fn reset(&self) {
        self.routing.members().for_each(|(_, member)| on!(member, e => e.reset()));
    }

    pub(crate) fn queue_status(&self, has_held_message: bool) -> QueueStatus {
        let mut sum = QueueStatus::default();
        for (member_index, member) in self.routing.members() {
            let is_holder = has_held_message && member_index == self.held_by();
            let queues = on!(member, e => e.queue_status(is_holder));
            sum.receive += queues.receive;
            sum.send += queues.send;
            sum.read += queues.read;
        }
        sum
    }

    pub(crate) fn save(&self, out: &mut Vec<u8>) {
        let put_word = |out: &mut Vec<u8>, word: u64| out.extend_from_slice(&word.to_le_bytes());
        put_word(out, SAVE_MAGIC);
        put_word(out, self.routing.members().count() as u64);
        for (_, member) in self.routing.members() {
            let mut saved = Vec::new();
            on!(member, e => e.save(&mut saved));
            put_word(out, saved.len() as u64);
            out.extend_from_slice(&saved);
        }
    }

    /// Restores all members or none.
    pub(crate) fn restore(&self, saved: &[u8]) -> PmResult<()> {
        let parts = split_saved(saved)?;
        let members: Vec<_> = self.routing.members().map(|(_, member)| member).collect();
        if parts.len() != members.len() {
            return Err(Error::Invalid);
        }
        let members_and_parts = || members.iter().zip(&parts);
        members_and_parts()
            .try_for_each(|(&member, part)| on!(member, e => e.check_saved(part)))?;
        members_and_parts().try_for_each(|(&member, part)| on!(member, e => e.restore(part)))
    }

    pub(crate) fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for (member_index, member) in self.routing.members() {
            let nodes = self.routing.routes_of(member_index).count();
            writeln!(out, "  member {member_index} reaches {nodes} nodes")?;
            on!(member, e => e.dump(out))?;
        }
        Ok(())
    }
}

fn split_saved(saved: &[u8]) -> PmResult<Vec<&[u8]>> {
    fn take_word<'a>(bytes: &mut &'a [u8]) -> PmResult<u64> {
        let (first, rest): (&'a [u8; 8], &'a [u8]) =
            bytes.split_first_chunk().ok_or(Error::Invalid)?;
        *bytes = rest;
        Ok(u64::from_le_bytes(*first))
    }
    let mut bytes = saved;
    if take_word(&mut bytes)? != SAVE_MAGIC {
        return Err(Error::Invalid);
    }
    let count = take_word(&mut bytes)?;
    let mut parts = Vec::new();
    for _ in 0..count {
        let len = usize::try_from(take_word(&mut bytes)?).map_err(|_| Error::Invalid)?;
        let (part, rest) = bytes.split_at_checked(len).ok_or(Error::Invalid)?;
        parts.push(part);
        bytes = rest;
    }
    if bytes.is_empty() { Ok(parts) } else { Err(Error::Invalid) }
}
