//! A fuzz target: a hostile node sends messages to a node that has receives, sends, operations on
//! remote memory, and open regions.

use crate::atomic::{Datatype, Operator};
use crate::engine::Engine;
use crate::memory::{Message, UserBuffer, buffer_of};
use crate::network::{
    AccessError, AccessNumber, Body, EndedAccess, Network, SendError, WriteProgress,
};
use crate::operation::{
    AtomicOperation, Channel, Limits, ReadOperation, ReceiveMode, ReceiveOperation, Request,
    Retention, Selector, SendCompletes, SendOperation, Violation, WriteOperation,
};
use crate::regions::{FIRST_HANDLE, RegionAccess, Regions};
use crate::transfers::copies::CopyBudget;
use crate::wire::{EncodedHeader, Envelope, RemoteAddress};

const NODES: u32 = 3;
/// The length of the program's messages and receive buffers.
const LEN: usize = 300;
/// The value of the guard bytes around a receive buffer, which must not change.
const GUARD: u8 = 0xa5;
const GUARD_LEN: usize = 16;

/// A network that accepts all messages, and delivers the messages of the input.
#[derive(Debug)]
struct HostileNetwork<'a> {
    input: &'a [u8],
    /// The numbers of accesses that were started and that have ended. They end in the order of
    /// their start.
    started_accesses: u64,
    ended_accesses: u64,
}

impl<'a> HostileNetwork<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self { input, started_accesses: 0, ended_accesses: 0 }
    }

    /// The next message of the input.
    fn next_message(&mut self) -> Option<Message<'a>> {
        let (len, rest) = self.input.split_first()?;
        let (message, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        self.input = rest;
        Some(Message::of_bytes(message))
    }

    fn start_access(&mut self) -> AccessNumber {
        self.started_accesses += 1;
        AccessNumber(self.started_accesses)
    }
}

impl Network for HostileNetwork<'_> {
    fn mtu(&mut self, _: u32) -> usize {
        100
    }
    fn send(&mut self, _: u32, _: EncodedHeader, _: Body<'_>) -> Result<(), SendError> {
        Ok(())
    }
    fn expose(&mut self, _: u32, _: &UserBuffer) -> Option<u64> {
        Some(1)
    }
    fn conceal(&mut self, _: u32, _: &UserBuffer) {}
    fn expose_to_all(&mut self, _: &UserBuffer) -> Option<u64> {
        Some(FIRST_HANDLE)
    }
    fn conceal_from_all(&mut self, _: &UserBuffer) {}
    fn start_write(
        &mut self,
        _: u32,
        _: u64,
        _: &UserBuffer,
    ) -> Result<WriteProgress, AccessError> {
        Ok(WriteProgress::Started(self.start_access()))
    }
    fn start_read(
        &mut self,
        _: u32,
        handle: u64,
        _: &UserBuffer,
    ) -> Result<AccessNumber, AccessError> {
        if handle.is_multiple_of(2) { Err(AccessError::Failed) } else { Ok(self.start_access()) }
    }
    fn next_ended(&mut self) -> Option<EndedAccess> {
        let [is_any, is_late] =
            [self.ended_accesses < self.started_accesses, !self.input.len().is_multiple_of(2)];
        (is_any && !is_late).then(|| {
            self.ended_accesses += 1;
            let has_failed = self.input.len() % 4 == 2;
            EndedAccess { number: AccessNumber(self.ended_accesses), has_failed }
        })
    }
    fn release_buffer(&mut self, _: u32, _: &UserBuffer) {}
}

/// Delivers hostile bytes as messages to a node. The input is a sequence of messages, each preceded
/// by its length in one byte.
///
/// # Panics
/// Panics if a guard byte next to a receive buffer has changed.
pub fn fuzz(input: &[u8]) {
    let _ = receive_all(input);
}

/// The number of buffers: two are sent, four are for receives, two are regions (keys
/// [`FIRST_HANDLE`] and 1), and four are used by operations on memory of node 1.
const BUFFERS: usize = 12;

fn use_remote_memory(
    engine: &mut Engine<HostileNetwork<'_>>,
    index: usize,
    buffer: UserBuffer,
    request: Request,
) {
    let (node, target) = (1, RemoteAddress { key: 5, offset: 0 });
    match index {
        6 => _ = engine.register(buffer, RegionAccess::ALL),
        7 => _ = engine.register(buffer, RegionAccess::READ),
        // This is incoming transfer 0. Number 1 is below.
        8 => engine.read(&ReadOperation { node, target, buffer, request }),
        // This is outgoing transfer 2. Number 3 is below.
        9 => {
            let (retention, buffer) = (Retention::Stays, buffer.part(0, 40));
            let write = WriteOperation { node, target, buffer, retention, data: Some(1), request };
            let _ = engine.write(&write);
        }
        _ => {
            let atomic = AtomicOperation {
                node,
                target,
                operator: Operator::Sum,
                datatype: Datatype::Uint64,
                count: 2,
                operands: buffer.part(0, 16),
                compared: UserBuffer::empty(),
                result: (index == 10).then(|| buffer.part(16, 16)),
                request,
            };
            let _ = engine.atomic(&atomic);
        }
    }
}

fn receive_all(input: &[u8]) -> Result<(), Violation> {
    let mut memory: Vec<Vec<u8>> = (0..BUFFERS).map(|_| vec![GUARD; LEN + 2 * GUARD_LEN]).collect();
    let limits = Limits { window: 2000, min_read_len: LEN, credit_tries: 0 };
    let (regions, copies) = (Regions::new(), CopyBudget::new(LEN));
    let mut engine = Engine::new(HostileNetwork::new(input), 0, NODES, limits, regions, copies);
    for (index, bytes) in memory.iter_mut().enumerate() {
        let buffer = buffer_of(&[(bytes[GUARD_LEN..].as_mut_ptr(), LEN)]);
        let request = Request { context: index, is_reported: true };
        let tag = (index % 2 == 0).then_some(index as u64);
        if index < 2 {
            let (envelope, retention) = (Envelope { tag, data: None }, Retention::Stays);
            let completes = if index == 1 { SendCompletes::OnMatch } else { SendCompletes::AtOnce };
            let (node, buffer) = (1, buffer);
            let send = SendOperation { node, envelope, buffer, retention, request, completes };
            let _ = engine.send(&send);
            continue;
        }
        if index >= 6 {
            use_remote_memory(&mut engine, index, buffer, request);
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
    while result.is_ok()
        && let Some(message) = engine.network().next_message()
    {
        engine.on_message(&message);
        result = engine.progress();
        while engine.next_completion().is_some() {
            engine.remove_completion();
        }
    }
    for bytes in &memory {
        let (head, tail) = (&bytes[..GUARD_LEN], &bytes[GUARD_LEN + LEN..]);
        assert!(head.iter().chain(tail).all(|byte| *byte == GUARD));
    }
    result
}

#[cfg(test)]
mod tests {
    use crate::atomic::{Datatype, Operator};
    use crate::regions::FIRST_HANDLE;
    use crate::wire::{
        Announcement, AtomicRequest, Envelope, Header, OperationId, RemoteAddress, WriteBytes,
    };

    /// The number of the first receive of an announced message.
    const RECEIVE_ID: u32 = 2;

    fn write(key: u64, offset: u64, bytes: WriteBytes) -> Header {
        Header::Write { target: RemoteAddress { key, offset }, data: Some(1), bytes, send_id: 4 }
    }

    fn read(key: u64, offset: u64, len: u64) -> Header {
        Header::Read { target: RemoteAddress { key, offset }, len, receive_id: 4 }
    }

    fn atomic(operator: Operator, datatype: Datatype, count: u16, id: OperationId) -> Header {
        let target = RemoteAddress { key: FIRST_HANDLE, offset: 290 };
        Header::Atomic(AtomicRequest { target, operator, datatype, count, id })
    }

    fn refused(id: OperationId) -> Header {
        Header::Refused { id }
    }

    /// The seed sequences of messages, which the fuzzer mutates.
    fn inputs() -> Vec<Vec<u8>> {
        let envelope = |tag| Envelope { tag, data: Some(3) };
        let announcement = |len, handle| {
            let announcement = Announcement { len, handle, send_id: 0, wants_finished: true };
            Header::Announcement(envelope(Some(4)), announcement)
        };
        let pull = |send_id| Header::Pull { send_id, receive_id: 0, len: 200 };
        let fragment = |offset| Header::Fragment { receive_id: RECEIVE_ID, offset };
        let announced = |len, handle| WriteBytes::Announced { len, handle };
        let (send, receive) = (OperationId::Send, OperationId::Receive);
        let sequences = [
            vec![Header::Eager(envelope(Some(2)), None), Header::Eager(envelope(None), Some(3))],
            vec![announcement(120, 0), fragment(0), fragment(40), fragment(80)],
            vec![announcement(300, 1), announcement(u64::MAX, 2), fragment(0)],
            vec![pull(0), pull(1), Header::Finished { send_id: 1 }],
            vec![Header::Finished { send_id: 0 }, Header::Finished { send_id: 0 }],
            vec![Header::Credit { bytes: 0 }, Header::Credit { bytes: u64::MAX }],
            vec![announcement(0, 0), pull(7), fragment(0)],
            vec![write(FIRST_HANDLE, 260, WriteBytes::Inline), write(1, 0, WriteBytes::Inline)],
            vec![write(FIRST_HANDLE, 180, announced(120, 0)), fragment(0), fragment(40)],
            vec![write(FIRST_HANDLE, 0, announced(u64::MAX, 3)), read(1, 0, 300), read(1, 1, 300)],
            vec![
                atomic(Operator::Max, Datatype::Int8, 40, receive(1)),
                atomic(Operator::Sum, Datatype::Double, 5, send(1)),
            ],
            vec![refused(receive(0)), refused(receive(1)), refused(send(2)), refused(send(3))],
        ];
        let encode = |headers: Vec<Header>| {
            let messages = headers.into_iter().flat_map(|header| {
                let mut message = header.encode(1).to_vec();
                message.extend([9; 40]);
                [vec![message.len() as u8], message].concat()
            });
            messages.collect()
        };
        sequences.into_iter().map(encode).collect()
    }

    /// The violation that a node reports after these messages, given with their sources.
    fn verdict(messages: &[(u32, Header)]) -> Option<(Option<u32>, &'static str)> {
        let input = messages.iter().flat_map(|(source, header)| {
            let mut message = header.encode(*source).to_vec();
            let is_inline = matches!(
                header,
                Header::Write { bytes: WriteBytes::Inline, .. } | Header::Atomic(_)
            );
            if is_inline || matches!(header, Header::Eager(..) | Header::Fragment { .. }) {
                message.extend([9; 40]);
            }
            [vec![message.len() as u8], message].concat()
        });
        // A harmless last message, so that the engine processes everything before it.
        let credit = Header::Credit { bytes: 0 }.encode(1).to_vec();
        let last = [vec![credit.len() as u8], credit].concat();
        let input: Vec<u8> = input.chain(last.clone()).chain(last).collect();
        super::receive_all(&input).err().map(|violation| (violation.source, violation.what))
    }

    #[test]
    fn only_protocol_violations_are_reported_with_their_source() {
        let envelope = Envelope { tag: Some(4), data: None };
        let announcement = |len, wants_finished| {
            let announcement = Announcement { len, handle: 0, send_id: 0, wants_finished };
            Header::Announcement(envelope, announcement)
        };
        let fragment = |offset| Header::Fragment { receive_id: RECEIVE_ID, offset };
        let pull = |send_id, len| Header::Pull { send_id, receive_id: 0, len };
        let finished = |send_id| Header::Finished { send_id };
        // Gives the node time to send what was requested.
        let pause = (1, Header::Credit { bytes: 0 });
        let no_fragment = "sends a fragment that was not requested";
        let no_pull = "requests a message that was not announced";
        let no_end = "ends a message that was not announced";
        let no_refusal = "refuses an operation that was not requested";
        let impossible = "requests an invalid atomic operation";
        let inline = WriteBytes::Inline;
        let announced = WriteBytes::Announced { len: 80, handle: 0 };
        let (send, receive) = (OperationId::Send, OperationId::Receive);
        let of_receive = |receive_id, offset| Header::Fragment { receive_id, offset };
        let bits = |id| atomic(Operator::BitOr, Datatype::Uint8, 40, id);
        for (messages, expected) in [
            (vec![(1, announcement(80, true)), (1, fragment(0)), (1, fragment(40))], None),
            (vec![(1, announcement(120, false)), (1, fragment(40))], Some((Some(1), no_fragment))),
            (vec![(1, announcement(120, false)), (2, fragment(0))], Some((Some(2), no_fragment))),
            (vec![(1, announcement(39, false)), (1, fragment(0))], Some((Some(1), no_fragment))),
            (vec![(1, fragment(0))], Some((Some(1), no_fragment))),
            // The program's messages 0 and 1 have 300 bytes. The program waits for the delivery of
            // message 1.
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
            // An access to memory that is not open is refused. It is not a violation.
            (
                vec![(1, write(FIRST_HANDLE, 260, inline)), (2, write(FIRST_HANDLE, 261, inline))],
                None,
            ),
            (vec![(1, write(1, 0, inline)), (1, write(9, 0, inline))], None),
            (
                vec![(2, write(FIRST_HANDLE, 220, announced)), (2, fragment(0)), (2, fragment(40))],
                None,
            ),
            (
                vec![(2, write(FIRST_HANDLE, 221, announced)), (2, fragment(0))],
                Some((Some(2), no_fragment)),
            ),
            (vec![(1, read(1, 0, 300)), (1, read(1, 0, 301)), (2, read(1, u64::MAX, 2))], None),
            (vec![(1, read(1, 0, 0))], Some((Some(1), "reads no bytes"))),
            (vec![(1, bits(send(0))), (2, bits(receive(7)))], None),
            (
                vec![(1, atomic(Operator::BitOr, Datatype::Double, 5, send(0)))],
                Some((Some(1), impossible)),
            ),
            (
                vec![(1, atomic(Operator::Sum, Datatype::Double, 4, send(0)))],
                Some((Some(1), impossible)),
            ),
            (
                vec![(2, atomic(Operator::CompareSwap, Datatype::Int32, 10, send(0)))],
                Some((Some(2), impossible)),
            ),
            // The program reads 300 bytes (0), fetches 16 (1), writes (2), and does an atomic
            // operation (3).
            (vec![(1, of_receive(0, 0)), (1, of_receive(0, 40))], None),
            (vec![(1, of_receive(1, 0))], Some((Some(1), no_fragment))),
            (vec![(2, of_receive(0, 0))], Some((Some(2), no_fragment))),
            (vec![(1, refused(receive(0))), (1, refused(receive(1)))], None),
            (vec![(1, refused(send(2))), (1, refused(send(3)))], None),
            (vec![(1, finished(2)), (1, finished(3))], None),
            (vec![(1, finished(2)), (1, finished(2))], Some((Some(1), no_end))),
            (vec![(1, pull(2, 1))], Some((Some(1), no_pull))),
            (vec![(2, refused(send(2)))], Some((Some(2), no_refusal))),
            (vec![(1, refused(send(2))), (1, refused(send(2)))], Some((Some(1), no_refusal))),
            (vec![(1, refused(send(0)))], Some((Some(1), no_refusal))),
            (vec![(1, refused(send(9)))], Some((Some(1), no_refusal))),
            (vec![(1, of_receive(0, 0)), (1, refused(receive(0)))], Some((Some(1), no_refusal))),
            (vec![(2, refused(receive(1)))], Some((Some(2), no_refusal))),
            (vec![(0, finished(0))], Some((Some(0), "is not another node of this job"))),
            (vec![(3, finished(0))], Some((Some(3), "is not another node of this job"))),
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

    /// Writes the sequences to the corpus if SCORE_WRITE is set. Use it after a change of the
    /// headers.
    #[test]
    fn the_corpus_is_written_on_request() {
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
