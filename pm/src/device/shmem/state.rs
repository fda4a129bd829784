//! A context's state: how much is queued, dropping it, saving and restoring it, showing it.

// UNSAFETY: reads messages where they lie in the rings.
#![expect(unsafe_code)]

use super::{Endpoint, message_ring};
use crate::config::QueueStatus;
use crate::error::{Error, Result};
use crate::ring::{Consumer, Saved};
use crate::segment::{Kind, Segment};
use crate::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::io::Write;

/// "SCPMSAV" and the version of the format.
const SAVE_MAGIC: u64 = u64::from_le_bytes(*b"SCPMSAV\x02");
/// Words before the messages: magic, nodes, own node, sent, received, number of messages.
const HEAD: usize = 6;
/// Words before each payload: source, length, position (as `Received::position`).
const RECORD: usize = 3;

/// Takes all that is queued for `own` out of its rings; answers how many messages, and bytes.
pub(super) fn drop_received(segment: &Segment, own: usize) -> (u64, u64) {
    let (mut dropped, mut bytes) = (0, 0);
    for kind in [Kind::Message, Kind::Control, Kind::Remote] {
        for source in segment.active(own, kind).filter(|&source| source != own) {
            let ring = Consumer::new(segment.ring(source, own, kind));
            // Bounded: its sender may go on.
            for _ in 0..segment.geometry().ring.slots {
                let Ok(Some(message)) = ring.take() else { break };
                ring.release(message.next, message.data_end());
                if kind == Kind::Message {
                    dropped += 1;
                    bytes += message.len as u64;
                }
            }
        }
    }
    (dropped, bytes)
}

impl Endpoint {
    pub(crate) fn queue_status(&self, held: bool) -> QueueStatus {
        let own = self.own as usize;
        let queued: u64 = self
            .segment
            .active(own, Kind::Message)
            .filter(|&source| source != own && !self.is_broken(source))
            .map(|source| message_ring(&self.segment, source, own).queued())
            .sum();
        // A sent message is in its receiver's queue at once.
        let receive = (queued as usize).saturating_sub(held.into());
        QueueStatus { receive, send: 0, read: self.relayed_reads() }
    }

    pub(crate) fn reset(&self) {
        let (dropped, bytes) = drop_received(&self.segment, self.own as usize);
        let counters = &self.record().receive.0;
        let more = |word: &AtomicU64, by: u64| {
            word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
        };
        more(&counters.bytes, bytes);
        more(&counters.received, dropped);
    }

    pub(crate) fn save(&self, out: &mut Vec<u8>) {
        let own = self.own as usize;
        let record = self.record();
        let dropped = record.send.0.dropped.load(Ordering::Relaxed);
        let start = out.len();
        let word = |out: &mut Vec<u8>, word: u64| out.extend_from_slice(&word.to_le_bytes());
        word(out, SAVE_MAGIC);
        word(out, self.segment.geometry().nodes as u64);
        word(out, own as u64);
        word(out, record.send.0.sent.load(Ordering::Acquire));
        word(out, record.receive.0.received.load(Ordering::Acquire).wrapping_add(dropped));
        word(out, 0);
        let mut count: u64 = 0;
        for source in self.segment.active(own, Kind::Message).filter(|&source| source != own) {
            let ring = Consumer::new(message_ring(&self.segment, source, own));
            let mut next = ring.ring().consumed();
            for _ in 0..self.segment.geometry().ring.slots {
                let Ok(Some(message)) = ring.at(next) else { break };
                next = message.next;
                count += 1;
                word(out, source as u64);
                word(out, message.len as u64);
                word(out, message.position);
                // SAFETY: the length and place were checked when the message was looked at.
                let payload = unsafe { std::slice::from_raw_parts(message.payload, message.len) };
                out.extend_from_slice(payload);
                out.resize(start + (out.len() - start).next_multiple_of(8), 0);
            }
        }
        let at = start + (HEAD - 1) * 8;
        out[at..at + 8].copy_from_slice(&count.to_le_bytes());
    }

    /// Invalid: not a saved context of this place.
    pub(crate) fn check_saved(&self, saved: &[u8]) -> Result<()> {
        self.checked(saved).map(drop)
    }

    fn checked<'a>(&self, saved: &'a [u8]) -> Result<State<'a>> {
        let own = self.own as usize;
        let state = State::parse(saved)?;
        if state.nodes != self.segment.geometry().nodes as u64 || state.own != own as u64 {
            return Err(Error::Invalid);
        }
        let ring = |source| message_ring(&self.segment, source, own);
        let fits = |(&source, messages): (&usize, &Vec<Saved<'_>>)| {
            source < self.segment.geometry().nodes
                && source != own
                && ring(source).can_refill(messages)
        };
        if state.messages.iter().all(fits) { Ok(state) } else { Err(Error::Invalid) }
    }

    /// Invalid, and nothing has happened: not a saved context of this place.
    pub(crate) fn restore(&self, saved: &[u8]) -> Result<()> {
        let own = self.own as usize;
        let state = self.checked(saved)?;
        drop_received(&self.segment, own);
        for (&source, messages) in &state.messages {
            message_ring(&self.segment, source, own).refill(messages)?;
            self.segment.activate(source, own, Kind::Message);
        }
        let record = self.record();
        record.send.0.dropped.store(0, Ordering::Relaxed);
        record.send.0.sent.store(state.sent, Ordering::Release);
        record.receive.0.received.store(state.received, Ordering::Release);
        Ok(())
    }

    pub(crate) fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let record = self.record();
        writeln!(
            out,
            "  channel {} node {} of {}: sent {} received {} polls {} door {:#x}",
            self.channel,
            self.own,
            self.segment.geometry().nodes,
            record.send.0.sent.load(Ordering::Relaxed),
            record.receive.0.received.load(Ordering::Relaxed),
            record.epoch.0.load(Ordering::Relaxed),
            record.door.0.bits(),
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

/// A saved context, checked as far as bytes alone allow.
pub(crate) struct State<'a> {
    nodes: u64,
    own: u64,
    sent: u64,
    received: u64,
    messages: BTreeMap<usize, Vec<Saved<'a>>>,
}

impl<'a> State<'a> {
    pub(crate) fn parse(mut bytes: &'a [u8]) -> Result<State<'a>> {
        let mut word = || -> Result<u64> {
            let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Error::Invalid)?;
            bytes = rest;
            Ok(u64::from_le_bytes(*first))
        };
        if word()? != SAVE_MAGIC {
            return Err(Error::Invalid);
        }
        let mut state = State {
            nodes: word()?,
            own: word()?,
            sent: word()?,
            received: word()?,
            messages: BTreeMap::new(),
        };
        let count = word()?;
        for _ in 0..count {
            let mut head = [0; RECORD];
            for part in &mut head {
                let (first, rest) = bytes.split_first_chunk::<8>().ok_or(Error::Invalid)?;
                bytes = rest;
                *part = u64::from_le_bytes(*first);
            }
            let [source, len, position] = head;
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
