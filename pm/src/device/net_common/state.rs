//! The state of a context: queue status, reset, saving, restoring, and dump.

// UNSAFETY: reads messages in their buffers.
#![expect(unsafe_code)]

use super::receive::RestoredMessage;
use super::receive_buffers::AlignedLine;
use super::{Engine, NetworkDevice, NetworkEndpoint};
use crate::config::QueueStatus;
use crate::device::{Endpoint, StateInterface};
use crate::error::{Error, PmResult};
use crate::sync::Ordering;
use std::collections::VecDeque;
use std::io::Write;

/// The number of words in front of the messages of a saved context: the magic number of the format,
/// the number of nodes, this node, the sent and received counts, and the number of messages. Each
/// message has its source, length and payload, padded to 8 bytes.
const HEADER_WORDS: usize = 6;

impl<N: NetworkDevice> StateInterface for NetworkEndpoint<N> {
    /// Returns `Busy` if a message is not acknowledged, and `Io` if it can no longer be
    /// acknowledged.
    fn is_send_done(&self) -> PmResult<()> {
        let done = || {
            // The order of these checks matters: see `process_submitted`.
            self.queues.submitted.is_empty() && self.queues.outstanding.load(Ordering::Acquire) == 0
        };
        if !done() {
            N::poll_blocking(self);
        }
        if done() { Ok(()) } else { Err(N::check_operational(self).err().unwrap_or(Error::Busy)) }
    }

    /// `_held` is ignored, because the held message is not in the queues.
    fn queue_status(&self, _held: bool) -> QueueStatus {
        N::poll_blocking(self);
        let waiting = self.queues.submitted.len() as u64;
        let send = waiting + self.queues.outstanding.load(Ordering::Acquire);
        QueueStatus {
            receive: self.waiting_count(),
            send: send as usize,
            read: N::pending_reads(self),
        }
    }

    fn reset(&self) {
        self.discard_reserved();
        N::poll_blocking(self);
        self.drop_received();
        let mut engine = self.progress_lock.lock();
        while engine.control_message_count() > 0 {
            let _ = engine.receive_control(&self.queues, |_| Ok(()));
        }
    }

    fn save(&self, out: &mut Vec<u8>) {
        N::poll_blocking(self);
        let record = &self.record().node;
        let dropped = record.send.0.dropped.load(Ordering::Relaxed);
        let push_word = |out: &mut Vec<u8>, word: u64| out.extend_from_slice(&word.to_le_bytes());
        let start = out.len();
        push_word(out, N::SAVE_MAGIC);
        push_word(out, self.nodes() as u64);
        push_word(out, self.self_node.into());
        push_word(out, record.send.0.sent.load(Ordering::Acquire));
        push_word(out, record.receive.0.received.load(Ordering::Acquire).wrapping_add(dropped));
        let messages = self.copy_messages();
        push_word(out, messages.len() as u64);
        for (from, bytes) in messages {
            push_word(out, from.into());
            push_word(out, bytes.len() as u64);
            out.extend_from_slice(&bytes);
            out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        }
    }

    fn check_saved(&self, saved: &[u8]) -> PmResult<()> {
        self.parse_saved(saved).map(drop)
    }

    fn restore(&self, saved: &[u8]) -> PmResult<()> {
        let state = self.parse_saved(saved)?;
        N::poll_blocking(self);
        self.drop_received();
        let message = |&(from, bytes): &(u64, &[u8])| RestoredMessage {
            from: from as u32,
            len: bytes.len(),
            bytes: AlignedLine::copy(bytes),
        };
        self.receive.restore(state.messages.iter().map(message).collect());
        let record = &self.record().node;
        record.send.0.dropped.store(0, Ordering::Relaxed);
        record.send.0.sent.store(state.sent, Ordering::Release);
        record.receive.0.received.store(state.received, Ordering::Release);
        Ok(())
    }

    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let record = &self.record().node;
        writeln!(
            out,
            "  channel {} node {} of {}: sent {} received {} polls {} door {:#x}, {} waiting",
            self.channel,
            self.self_node,
            self.nodes(),
            record.send.0.sent.load(Ordering::Relaxed),
            record.receive.0.received.load(Ordering::Relaxed),
            record.poll_epoch.0.load(Ordering::Relaxed),
            record.receiver_state.0.bits(),
            self.queues.delivered.len(),
        )?;
        self.progress_lock.lock().dump(out)
    }
}

impl<N: NetworkDevice> NetworkEndpoint<N> {
    /// Copies the waiting messages. Takes and restores each message, so that all still wait.
    fn copy_messages(&self) -> Vec<(u32, Vec<u8>)> {
        let mut copies = Vec::new();
        let mut restored = VecDeque::new();
        for _ in 0..self.waiting_count() {
            let Some(from) = self.next_source() else { break };
            let Ok((_, ptr, len)) = self.take_uncounted() else { break };
            // SAFETY: the message that was taken is readable until it is released below.
            let bytes = unsafe { std::slice::from_raw_parts(ptr, len) }.to_vec();
            self.release_uncounted();
            restored.push_back(RestoredMessage { from, len, bytes: AlignedLine::copy(&bytes) });
            copies.push((from, bytes));
        }
        self.receive.restore(restored);
        copies
    }

    fn parse_saved<'a>(&self, saved: &'a [u8]) -> PmResult<NetworkSavedState<'a>> {
        let state = NetworkSavedState::parse(N::SAVE_MAGIC, saved)?;
        let fits = |&(from, bytes): &(u64, &[u8])| {
            from < self.nodes() as u64
                && from != u64::from(self.self_node)
                && bytes.len() <= self.mtu
        };
        let is_same_node =
            state.nodes == self.nodes() as u64 && state.self_node == u64::from(self.self_node);
        if is_same_node && state.messages.iter().all(fits) {
            Ok(state)
        } else {
            Err(Error::Invalid)
        }
    }
}

/// A saved context, validated as far as possible without a context.
struct NetworkSavedState<'a> {
    nodes: u64,
    self_node: u64,
    sent: u64,
    received: u64,
    messages: Vec<(u64, &'a [u8])>,
}

impl<'a> NetworkSavedState<'a> {
    fn parse(expected_magic: u64, mut bytes: &'a [u8]) -> PmResult<NetworkSavedState<'a>> {
        let read_word = |bytes: &mut &'a [u8]| -> PmResult<u64> {
            let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Error::Invalid)?;
            *bytes = rest;
            Ok(u64::from_le_bytes(*first))
        };
        let mut header = [0; HEADER_WORDS];
        for field in &mut header {
            *field = read_word(&mut bytes)?;
        }
        let [magic, nodes, self_node, sent, received, count] = header;
        if magic != expected_magic {
            return Err(Error::Invalid);
        }
        let mut messages = Vec::new();
        for _ in 0..count {
            let from = read_word(&mut bytes)?;
            let len = usize::try_from(read_word(&mut bytes)?).map_err(|_| Error::Invalid)?;
            let padded = len.checked_next_multiple_of(8).ok_or(Error::Invalid)?;
            let (payload, rest) = bytes.split_at_checked(padded).ok_or(Error::Invalid)?;
            bytes = rest;
            messages
                .push((from, payload.get(..len).filter(|p| !p.is_empty()).ok_or(Error::Invalid)?));
        }
        let state = NetworkSavedState { nodes, self_node, sent, received, messages };
        if bytes.is_empty() { Ok(state) } else { Err(Error::Invalid) }
    }
}
