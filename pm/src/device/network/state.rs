//! A context's state: how much is queued, dropping it, saving and restoring it, showing it.

// UNSAFETY: reads messages where they wait.
#![expect(unsafe_code)]

use super::pool::Line;
use super::receive::Restored;
use super::{Endpoint, Engine, Network};
use crate::config::QueueStatus;
use crate::error::{Error, Result};
use crate::sync::Ordering;
use std::collections::VecDeque;
use std::io::Write;

/// Words before the messages: whose format it is, nodes, own node, sent, received and the number of
/// messages. Of each message source, length and payload, padded to 8.
const HEAD: usize = 6;

/// Whether `bytes` are a saved context of this kind, as far as bytes alone tell.
pub(crate) fn is_saved_context<N: Network>(bytes: &[u8]) -> bool {
    SavedState::parse(N::SAVED, bytes).is_ok()
}

impl<N: Network> Endpoint<N> {
    /// Busy: something is not acknowledged. Io: nor will it be.
    pub(crate) fn is_send_done(&self) -> Result<()> {
        let done = || {
            // In this order: see `take_submitted`.
            self.lanes.submitted.is_empty() && self.lanes.outstanding.load(Ordering::Acquire) == 0
        };
        if !done() {
            N::poll_surely(self);
        }
        if done() { Ok(()) } else { Err(N::check(self).err().unwrap_or(Error::Busy)) }
    }

    /// `held` is not among what waits here.
    pub(crate) fn queue_status(&self, _held: bool) -> QueueStatus {
        N::poll_surely(self);
        let waiting = self.lanes.submitted.len() as u64;
        let send = waiting + self.lanes.outstanding.load(Ordering::Acquire);
        QueueStatus { receive: self.waiting(), send: send as usize, read: N::reads(self) }
    }

    pub(crate) fn reset(&self) {
        self.give_up_reserved();
        N::poll_surely(self);
        self.drop_received();
        let mut engine = self.served.enter();
        while engine.letters() > 0 {
            let _ = engine.read_letter(&self.lanes, |_| Ok(()));
        }
    }

    /// Both locks, nothing held. What is not acknowledged is not in it: see `is_send_done`.
    pub(crate) fn save(&self, out: &mut Vec<u8>) {
        N::poll_surely(self);
        let record = &self.record().node;
        let dropped = record.send.0.dropped.load(Ordering::Relaxed);
        let word = |out: &mut Vec<u8>, word: u64| out.extend_from_slice(&word.to_le_bytes());
        let start = out.len();
        word(out, N::SAVED);
        word(out, self.nodes() as u64);
        word(out, self.own.into());
        word(out, record.send.0.sent.load(Ordering::Acquire));
        word(out, record.receive.0.received.load(Ordering::Acquire).wrapping_add(dropped));
        let messages = self.messages();
        word(out, messages.len() as u64);
        for (from, bytes) in messages {
            word(out, from.into());
            word(out, bytes.len() as u64);
            out.extend_from_slice(&bytes);
            out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        }
    }

    /// Copies of what waits, which goes on waiting: taken from one end and put to the other.
    fn messages(&self) -> Vec<(u32, Vec<u8>)> {
        let mut all = Vec::new();
        let mut keep = VecDeque::new();
        for _ in 0..self.waiting() {
            let Some(from) = self.peek() else { break };
            let Ok((_, at, len)) = self.take_uncounted() else { break };
            // SAFETY: what was taken is readable until it is released, below.
            let bytes = unsafe { std::slice::from_raw_parts(at, len) }.to_vec();
            self.release_uncounted();
            keep.push_back(Restored { from, len, bytes: Line::copy(&bytes) });
            all.push((from, bytes));
        }
        self.receive.restore(keep);
        all
    }

    /// Invalid: not a saved context of this place.
    pub(crate) fn check_saved(&self, saved: &[u8]) -> Result<()> {
        self.checked(saved).map(drop)
    }

    fn checked<'a>(&self, saved: &'a [u8]) -> Result<SavedState<'a>> {
        let state = SavedState::parse(N::SAVED, saved)?;
        let fits = |&(from, bytes): &(u64, &[u8])| {
            from < self.nodes() as u64 && from != u64::from(self.own) && bytes.len() <= self.mtu
        };
        let same = state.nodes == self.nodes() as u64 && state.own == u64::from(self.own);
        if same && state.messages.iter().all(fits) { Ok(state) } else { Err(Error::Invalid) }
    }

    /// Invalid, and nothing has happened: not a saved context of this place.
    pub(crate) fn restore(&self, saved: &[u8]) -> Result<()> {
        let state = self.checked(saved)?;
        N::poll_surely(self);
        self.drop_received();
        let message = |&(from, bytes): &(u64, &[u8])| Restored {
            from: from as u32,
            len: bytes.len(),
            bytes: Line::copy(bytes),
        };
        self.receive.restore(state.messages.iter().map(message).collect());
        let record = &self.record().node;
        record.send.0.dropped.store(0, Ordering::Relaxed);
        record.send.0.sent.store(state.sent, Ordering::Release);
        record.receive.0.received.store(state.received, Ordering::Release);
        Ok(())
    }

    pub(crate) fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let record = &self.record().node;
        writeln!(
            out,
            "  channel {} node {} of {}: sent {} received {} polls {} door {:#x}, {} wait here",
            self.channel,
            self.own,
            self.nodes(),
            record.send.0.sent.load(Ordering::Relaxed),
            record.receive.0.received.load(Ordering::Relaxed),
            record.epoch.0.load(Ordering::Relaxed),
            record.door.0.bits(),
            self.lanes.delivered.len(),
        )?;
        self.served.enter().dump(out)
    }
}

/// A saved context, checked as far as bytes alone allow.
struct SavedState<'a> {
    nodes: u64,
    own: u64,
    sent: u64,
    received: u64,
    messages: Vec<(u64, &'a [u8])>,
}

impl<'a> SavedState<'a> {
    fn parse(kind: u64, mut bytes: &'a [u8]) -> Result<SavedState<'a>> {
        let word = |bytes: &mut &'a [u8]| -> Result<u64> {
            let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Error::Invalid)?;
            *bytes = rest;
            Ok(u64::from_le_bytes(*first))
        };
        let mut head = [0; HEAD];
        for part in &mut head {
            *part = word(&mut bytes)?;
        }
        let [magic, nodes, own, sent, received, count] = head;
        if magic != kind {
            return Err(Error::Invalid);
        }
        let mut messages = Vec::new();
        for _ in 0..count {
            let from = word(&mut bytes)?;
            let len = usize::try_from(word(&mut bytes)?).map_err(|_| Error::Invalid)?;
            let padded = len.checked_next_multiple_of(8).ok_or(Error::Invalid)?;
            let (payload, rest) = bytes.split_at_checked(padded).ok_or(Error::Invalid)?;
            bytes = rest;
            messages
                .push((from, payload.get(..len).filter(|p| !p.is_empty()).ok_or(Error::Invalid)?));
        }
        let state = SavedState { nodes, own, sent, received, messages };
        if bytes.is_empty() { Ok(state) } else { Err(Error::Invalid) }
    }
}
