//! Messages of a hostile node for a node with receives, sends and reads under way.

use crate::engine::Engine;
use crate::memory::{Message, UserBuffer, buffer_of};
use crate::network::{Body, Network, ReadError, SendError};
use crate::operation::{
    Channel, Limits, ReceiveMode, ReceiveOperation, Request, Retention, Selector, SendOperation,
    Violation,
};
use crate::wire::Envelope;

const NODES: u32 = 3;
/// Messages of the program, and its receive buffers.
const LEN: usize = 300;
/// Bytes around a receive buffer that must not change.
const GUARD: u8 = 0xa5;
const GUARD_LEN: usize = 16;

/// A network that takes everything, and brings the messages of the input.
#[derive(Debug)]
struct HostileNetwork<'a> {
    input: &'a [u8],
}

impl Network for HostileNetwork<'_> {
    fn mtu(&mut self, _: u32) -> usize {
        100
    }
    fn send(&mut self, _: u32, _: &[u8], _: Body<'_>) -> Result<(), SendError> {
        Ok(())
    }
    fn receive(&mut self, handle: impl FnOnce(Message<'_>)) -> bool {
        let Some((len, rest)) = self.input.split_first() else { return false };
        let (message, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        self.input = rest;
        handle(Message::of_bytes(message));
        true
    }
    fn expose(&mut self, _: u32, _: &UserBuffer) -> Option<u64> {
        Some(1)
    }
    fn conceal(&mut self, _: u32, _: &UserBuffer) {}
    fn start_read(&mut self, _: u32, handle: u64, _: &UserBuffer) -> Result<(), ReadError> {
        if handle.is_multiple_of(2) { Err(ReadError::Failed) } else { Ok(()) }
    }
    fn end_read(&mut self, _: u32, _: &UserBuffer) {}
    fn are_reads_done(&mut self) -> Result<bool, ReadError> {
        Ok(self.input.len().is_multiple_of(2))
    }
}

/// Has a node receive hostile bytes as messages: a length, then as many bytes, again and again.
///
/// # Panics
/// A byte beside a receive buffer has changed.
pub fn fuzz(input: &[u8]) {
    let _ = receive_all(input);
}

fn receive_all(input: &[u8]) -> Result<(), Violation> {
    let mut memory: Vec<Vec<u8>> = (0..6).map(|_| vec![GUARD; LEN + 2 * GUARD_LEN]).collect();
    let limits = Limits { window: 2000, min_read_len: LEN };
    let mut engine = Engine::new(HostileNetwork { input }, 0, NODES, limits);
    for (index, bytes) in memory.iter_mut().enumerate() {
        let buffer = buffer_of(&[(bytes[GUARD_LEN..].as_mut_ptr(), LEN)]);
        let request = Request { context: index, is_reported: true };
        let tag = (index % 2 == 0).then_some(index as u64);
        if index < 2 {
            let (envelope, retention) = (Envelope { tag, data: None }, Retention::Stays);
            let is_delivery_awaited = index == 1;
            let (node, buffer) = (1, buffer);
            let send =
                SendOperation { node, envelope, buffer, retention, request, is_delivery_awaited };
            let _ = engine.send(&send);
            continue;
        }
        let mode = match index {
            2 | 3 => ReceiveMode::Multiple { min_free: 50 },
            _ => ReceiveMode::Single,
        };
        let (channel, selector) = match tag {
            Some(tag) => (Channel::Tagged, Selector { source: None, tag, ignore: 7 }),
            None => (Channel::Untagged, Selector::untagged(Some(1))),
        };
        engine.receive(channel, ReceiveOperation { selector, buffer, mode, request });
    }
    let mut result = Ok(());
    while !engine.network().input.is_empty() && result.is_ok() {
        result = engine.progress();
        while engine.next_completion().is_some() {}
    }
    for bytes in &memory {
        let (head, tail) = (&bytes[..GUARD_LEN], &bytes[GUARD_LEN + LEN..]);
        assert!(head.iter().chain(tail).all(|byte| *byte == GUARD));
    }
    result
}

#[cfg(test)]
mod tests {
    use crate::engine::MESSAGES_PER_PASS;
    use crate::wire::{Announcement, Envelope, Header};

    /// Sequences of messages, of which the fuzzer makes others.
    fn inputs() -> Vec<Vec<u8>> {
        let envelope = |tag| Envelope { tag, data: Some(3) };
        let announcement = |len, handle| {
            let announcement = Announcement { len, handle, send_id: 0, wants_finished: true };
            Header::Announcement(envelope(Some(4)), announcement)
        };
        let pull = |send_id| Header::Pull { send_id, receive_id: 0, len: 200 };
        let fragment = |offset| Header::Fragment { receive_id: 0, offset };
        let sequences = [
            vec![Header::Eager(envelope(Some(2))), Header::Eager(envelope(None))],
            vec![announcement(120, 0), fragment(0), fragment(40), fragment(80)],
            vec![announcement(300, 1), announcement(u64::MAX, 2), fragment(0)],
            vec![pull(0), pull(1), Header::Finished { send_id: 1 }],
            vec![Header::Finished { send_id: 0 }, Header::Finished { send_id: 0 }],
            vec![Header::Credit { bytes: 0 }, Header::Credit { bytes: u64::MAX }],
            vec![announcement(0, 0), pull(7), fragment(0)],
        ];
        let encode = |headers: Vec<Header>| {
            let messages = headers.into_iter().flat_map(|header| {
                let mut message = header.encode(1).as_bytes().to_vec();
                message.extend([9; 40]);
                [vec![message.len() as u8], message].concat()
            });
            messages.collect()
        };
        sequences.into_iter().map(encode).collect()
    }

    /// What a node says of messages of these sources.
    fn verdict(messages: &[(u32, Header)]) -> Option<(Option<u32>, &'static str)> {
        let repeat = |header: &Header| match header {
            Header::Credit { .. } => 2 * MESSAGES_PER_PASS,
            _ => 1,
        };
        let messages = messages.iter().flat_map(|one| std::iter::repeat_n(one, repeat(&one.1)));
        let input = messages.flat_map(|(source, header)| {
            let mut message = header.encode(*source).as_bytes().to_vec();
            if matches!(header, Header::Eager(_) | Header::Fragment { .. }) {
                message.extend([9; 40]);
            }
            [vec![message.len() as u8], message].concat()
        });
        // A last message that is harmless, so that everything before it is worked off.
        let credit = Header::Credit { bytes: 0 }.encode(1).as_bytes().to_vec();
        let last = [vec![credit.len() as u8], credit].concat();
        let input: Vec<u8> = input.chain(last.clone()).chain(last).collect();
        super::receive_all(&input).err().map(|violation| (violation.source, violation.what))
    }

    #[test]
    fn what_breaks_the_protocol_is_named_and_nothing_else() {
        let envelope = Envelope { tag: Some(4), data: None };
        let announcement = |len, wants_finished| {
            let announcement = Announcement { len, handle: 0, send_id: 0, wants_finished };
            Header::Announcement(envelope, announcement)
        };
        let fragment = |offset| Header::Fragment { receive_id: 0, offset };
        let pull = |send_id, len| Header::Pull { send_id, receive_id: 0, len };
        let finished = |send_id| Header::Finished { send_id };
        // Time in which a node sends what it was asked for.
        let pause = (1, Header::Credit { bytes: 0 });
        let no_fragment = "sends a fragment that nobody has asked for";
        let no_pull = "asks for a message that was not announced";
        let no_end = "ends a message that was not announced";
        for (messages, expected) in [
            (vec![(1, announcement(80, true)), (1, fragment(0)), (1, fragment(40))], None),
            (vec![(1, announcement(120, false)), (1, fragment(40))], Some((Some(1), no_fragment))),
            (vec![(1, announcement(120, false)), (2, fragment(0))], Some((Some(2), no_fragment))),
            (vec![(1, announcement(39, false)), (1, fragment(0))], Some((Some(1), no_fragment))),
            (vec![(1, fragment(0))], Some((Some(1), no_fragment))),
            // The program's messages 0 and 1 have 300 bytes; it waits for the delivery of 1.
            (vec![(1, pull(0, 300)), (1, pull(1, 299)), pause, (1, finished(1))], None),
            (vec![(1, pull(0, 301))], Some((Some(1), no_pull))),
            (vec![(1, pull(0, 0))], Some((Some(1), no_pull))),
            (vec![(2, pull(0, 300))], Some((Some(2), no_pull))),
            (vec![(1, pull(2, 300))], Some((Some(1), no_pull))),
            (vec![(1, pull(1, 1)), (1, pull(1, 1))], Some((Some(1), no_pull))),
            (vec![(1, finished(0)), (1, finished(1))], None),
            (vec![(1, finished(0)), (1, finished(0))], Some((Some(1), no_end))),
            (vec![(2, finished(0))], Some((Some(2), no_end))),
            (vec![(1, pull(0, 300)), (1, finished(0))], Some((Some(1), no_end))),
            (vec![(0, finished(0))], Some((Some(0), "is no other node of this job"))),
            (vec![(3, finished(0))], Some((Some(3), "is no other node of this job"))),
        ] {
            assert_eq!(verdict(&messages), expected, "{messages:?}");
        }
        let malformed = super::receive_all(&[3, 1, 2, 3]).unwrap_err();
        assert_eq!((malformed.source, malformed.what), (None, "sends a malformed header"));
    }

    #[test]
    fn hostile_messages_change_no_other_memory() {
        for input in inputs() {
            super::fuzz(&input);
            for cut in 0..input.len() {
                super::fuzz(&input[..cut]);
                let mut changed = input.clone();
                changed[cut] ^= 1 << (cut % 8);
                super::fuzz(&changed);
            }
        }
    }

    #[test]
    fn the_corpus_is_received_without_a_panic() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/p2p"));
        let missing = inputs().into_iter().enumerate().filter(|(index, input)| {
            std::fs::read(folder.join(format!("sequence_{index}"))).ok().as_ref() != Some(input)
        });
        assert_eq!(
            missing.map(|(index, _)| index).collect::<Vec<_>>(),
            [0; 0],
            "run with SCORE_WRITE=1"
        );
        for input in std::fs::read_dir(folder).unwrap().flatten() {
            super::fuzz(&std::fs::read(input.path()).unwrap());
        }
    }

    /// Writes the sequences to the corpus, if SCORE_WRITE is set: when the headers have changed.
    #[test]
    fn the_corpus_is_written_on_demand() {
        if std::env::var_os("SCORE_WRITE").is_none() {
            return;
        }
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/p2p"));
        std::fs::create_dir_all(folder).unwrap();
        for (index, input) in inputs().into_iter().enumerate() {
            std::fs::write(folder.join(format!("sequence_{index}")), input).unwrap();
        }
    }
}
