//! A context's state: queue lengths, reset, save, restore and dump.

// UNSAFETY: reads messages in place in the rings.
#![expect(unsafe_code)]

use super::{ShmemEndpoint, message_ring};
use crate::config::QueueStatus;
use crate::device::{Endpoint, StateInterface};
use crate::error::{Error, PmResult};
use crate::ring::{Consumer, Saved};
use crate::segment::{RingKind, Segment};
use crate::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::io::Write;

/// "SCPMSAV" and the version of the format.
const SAVE_MAGIC: u64 = u64::from_le_bytes(*b"SCPMSAV\x02");
/// The number of words before the messages: magic, nodes, self node, sent, received, number of
/// messages.
const HEADER_WORDS: usize = 6;
/// The number of words before each payload: source, length, position (as `TakenMessage::position`).
const MESSAGE_HEADER_WORDS: usize = 3;

/// Takes all messages for `self_node` out of its rings. Returns their number and bytes.
pub(super) fn drop_received(segment: &Segment, self_node: usize) -> (u64, u64) {
    let (mut dropped_count, mut dropped_len) = (0, 0);
    for kind in [RingKind::Message, RingKind::Control] {
        for source in segment.active_sources(self_node, kind).filter(|&source| source != self_node)
        {
            let ring = Consumer::new(segment.ring(source, self_node, kind));
            // The number of reads is limited, because the sender may send more meanwhile.
            for _ in 0..segment.geometry().ring.slot_count {
                let Ok(Some(message)) = ring.take() else { break };
                ring.release(message.next_index, message.data_end());
                if kind == RingKind::Message {
                    dropped_count += 1;
                    dropped_len += message.len as u64;
                }
            }
        }
    }
    (dropped_count, dropped_len)
}

impl StateInterface for ShmemEndpoint {
    fn is_send_done(&self) -> PmResult<()> {
        let has_broken_link = (0..self.nodes()).any(|node| self.is_broken(node));
        if has_broken_link { Err(Error::Io) } else { Ok(()) }
    }

    fn queue_status(&self, has_held_message: bool) -> QueueStatus {
        let self_node = self.self_node as usize;
        let queued: u64 = self
            .segment
            .active_sources(self_node, RingKind::Message)
            .filter(|&source| source != self_node && !self.is_broken(source))
            .map(|source| message_ring(&self.segment, source, self_node).queued())
            .sum();
        // A sent message is immediately in its receiver's queue, and a read ends in its call.
        let receive = (queued as usize).saturating_sub(has_held_message.into());
        QueueStatus { receive, send: 0, read: 0 }
    }

    fn reset(&self) {
        let (dropped_count, dropped_len) = drop_received(&self.segment, self.self_node as usize);
        let counters = &self.record().receive.0;
        let add = |word: &AtomicU64, by: u64| {
            word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
        };
        add(&counters.bytes, dropped_len);
        add(&counters.received, dropped_count);
    }

    fn save(&self, out: &mut Vec<u8>) {
        let self_node = self.self_node as usize;
        let record = self.record();
        let dropped_count = record.send.0.dropped.load(Ordering::Relaxed);
        let start = out.len();
        let put_word = |out: &mut Vec<u8>, word: u64| out.extend_from_slice(&word.to_le_bytes());
        put_word(out, SAVE_MAGIC);
        put_word(out, self.segment.geometry().nodes as u64);
        put_word(out, self_node as u64);
        put_word(out, record.send.0.sent.load(Ordering::Acquire));
        put_word(
            out,
            record.receive.0.received.load(Ordering::Acquire).wrapping_add(dropped_count),
        );
        put_word(out, 0);
        let mut count: u64 = 0;
        for source in self
            .segment
            .active_sources(self_node, RingKind::Message)
            .filter(|&source| source != self_node)
        {
            let ring = Consumer::new(message_ring(&self.segment, source, self_node));
            let mut next = ring.ring().consumer_index();
            for _ in 0..self.segment.geometry().ring.slot_count {
                let Ok(Some(message)) = ring.message_at(next) else { break };
                next = message.next_index;
                count += 1;
                put_word(out, source as u64);
                put_word(out, message.len as u64);
                put_word(out, message.position);
                // SAFETY: the message's length and address were checked when it was read.
                let payload = unsafe { std::slice::from_raw_parts(message.payload, message.len) };
                out.extend_from_slice(payload);
                out.resize(start + (out.len() - start).next_multiple_of(8), 0);
            }
        }
        let count_offset = start + (HEADER_WORDS - 1) * 8;
        out[count_offset..count_offset + 8].copy_from_slice(&count.to_le_bytes());
    }

    fn check_saved(&self, saved: &[u8]) -> PmResult<()> {
        self.parse_checked(saved).map(drop)
    }

    fn restore(&self, saved: &[u8]) -> PmResult<()> {
        let self_node = self.self_node as usize;
        let state = self.parse_checked(saved)?;
        drop_received(&self.segment, self_node);
        for (&source, messages) in &state.messages {
            message_ring(&self.segment, source, self_node).restore(messages)?;
            self.segment.activate(source, self_node, RingKind::Message);
        }
        let record = self.record();
        record.send.0.dropped.store(0, Ordering::Relaxed);
        record.send.0.sent.store(state.sent, Ordering::Release);
        record.receive.0.received.store(state.received, Ordering::Release);
        Ok(())
    }

    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let record = self.record();
        writeln!(
            out,
            "  channel {} node {} of {}: sent {} received {} polls {} door {:#x}",
            self.channel,
            self.self_node,
            self.segment.geometry().nodes,
            record.send.0.sent.load(Ordering::Relaxed),
            record.receive.0.received.load(Ordering::Relaxed),
            record.poll_epoch.0.load(Ordering::Relaxed),
            record.receiver_state.0.bits(),
        )?;
        for (source, consumer) in self.known_sources() {
            writeln!(out, "  from {source}: {} queued", consumer.ring().queued())?;
        }
        for node in (0..self.segment.geometry().nodes).filter(|&node| self.is_broken(node)) {
            writeln!(out, "  link to {node} is broken")?;
        }
        Ok(())
    }
}

impl ShmemEndpoint {
    fn parse_checked<'a>(&self, saved: &'a [u8]) -> PmResult<ShmemSavedState<'a>> {
        let self_node = self.self_node as usize;
        let state = ShmemSavedState::parse(saved)?;
        if state.nodes != self.segment.geometry().nodes as u64
            || state.self_node != self_node as u64
        {
            return Err(Error::Invalid);
        }
        let ring = |source| message_ring(&self.segment, source, self_node);
        let fits = |(&source, messages): (&usize, &Vec<Saved<'_>>)| {
            source < self.segment.geometry().nodes
                && source != self_node
                && ring(source).can_restore(messages)
        };
        if state.messages.iter().all(fits) { Ok(state) } else { Err(Error::Invalid) }
    }
}

/// A saved context. `parse` checks everything that can be checked without the context.
pub(crate) struct ShmemSavedState<'a> {
    nodes: u64,
    self_node: u64,
    sent: u64,
    received: u64,
    messages: BTreeMap<usize, Vec<Saved<'a>>>,
}

impl<'a> ShmemSavedState<'a> {
    pub(crate) fn parse(mut bytes: &'a [u8]) -> PmResult<ShmemSavedState<'a>> {
        let mut word = || -> PmResult<u64> {
            let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Error::Invalid)?;
            bytes = rest;
            Ok(u64::from_le_bytes(*first))
        };
        if word()? != SAVE_MAGIC {
            return Err(Error::Invalid);
        }
        let mut state = ShmemSavedState {
            nodes: word()?,
            self_node: word()?,
            sent: word()?,
            received: word()?,
            messages: BTreeMap::new(),
        };
        let count = word()?;
        for _ in 0..count {
            let mut header = [0; MESSAGE_HEADER_WORDS];
            for field in &mut header {
                let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Error::Invalid)?;
                bytes = rest;
                *field = u64::from_le_bytes(*first);
            }
            let [source, len, position] = header;
            let source = usize::try_from(source).map_err(|_| Error::Invalid)?;
            let len = usize::try_from(len).map_err(|_| Error::Invalid)?;
            let padded = len.checked_next_multiple_of(8).ok_or(Error::Invalid)?;
            let (payload, rest) = bytes.split_at_checked(padded).ok_or(Error::Invalid)?;
            bytes = rest;
            let saved = Saved { payload: &payload[..len], position };
            state.messages.entry(source).or_default().push(saved);
        }
        if bytes.is_empty() { Ok(state) } else { Err(Error::Invalid) }
    }
}
