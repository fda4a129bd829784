//! Atomic operations on memory of other nodes. The target executes them one after the other when it
//! makes progress, in the order in which an origin requests them. They are atomic with respect to
//! each other, but not with respect to accesses of the target's own program (fi_atomic(3)).

use crate::atomic::{MAX_ATOMIC_LEN, Operator, apply};
use crate::counts::Counted;
use crate::destination::Destination;
use crate::engine::Engine;
use crate::matching::Origin;
use crate::memory::{Payload, UserBuffer};
use crate::network::{Body, Network, SendError};
use crate::operation::{AtomicOperation, CompletionKind, Failure, Request, Retention, Violation};
use crate::regions::RegionAccess;
use crate::state::State;
use crate::transfers::{IncomingPurpose, IncomingTransfer, OutgoingPurpose, OutgoingTransfer};
use crate::wire::{Announcement, AtomicRequest, Header, OperationId};

impl<N: Network> Engine<N> {
    /// Requests an atomic operation. Operands, values to compare with and result have `count`
    /// elements, if they are present, and at most [`MAX_ATOMIC_LEN`] bytes. The operator must
    /// accept the type.
    ///
    /// # Errors
    /// Returns `Full` if nothing was done; the program tries again after [`Engine::progress`].
    pub fn atomic(&mut self, atomic: &AtomicOperation) -> Result<(), SendError> {
        let AtomicOperation { node, target, operator, datatype, request, ref result, .. } = *atomic;
        let mut operands = atomic.operands.to_vec();
        operands.extend(atomic.compared.to_vec());
        let (id, count) = match result {
            Some(_) => {
                (OperationId::Receive(self.state.receives.vacant_key() as u32), atomic.count)
            }
            None => (OperationId::Send(self.state.sends.vacant_key() as u32), atomic.count),
        };
        let wire_request = AtomicRequest { target, operator, datatype, count: count as u16, id };
        if node == self.state.self_node {
            let former = self.state.apply(&wire_request, &operands);
            let failure = former.is_none().then_some(Failure::Refused);
            if let (Some(result), Some(former)) = (result, former) {
                result.fill_from(0, Payload::of_bytes(&former));
            }
            self.state.complete_atomic(request, result.is_some(), failure);
            return Ok(());
        }
        let header = Header::Atomic(wire_request).encode(self.state.self_node);
        self.network.send(node, header, Body::Bytes(&operands))?;
        match result {
            None => {
                let purpose = OutgoingPurpose::Atomic;
                self.state.sends.insert(OutgoingTransfer::awaited(node, request, purpose));
            }
            Some(result) => {
                let len = result.len();
                self.state.receives.insert(IncomingTransfer {
                    destination: Destination::of(result.clone(), request),
                    origin: Origin { source: node, tag: 0 },
                    purpose: IncomingPurpose::Fetch,
                    announcement: Announcement {
                        len: len as u64,
                        handle: 0,
                        send_id: 0,
                        wants_finished: false,
                    },
                    wanted: len,
                    arrived: Some(0),
                    is_dropped: false,
                });
            }
        }
        Ok(())
    }
}

impl State {
    /// Executes an atomic operation on this node's memory. Returns the former values. None: the
    /// region does not permit the operation.
    fn apply(&mut self, wire_request: &AtomicRequest, operands: &[u8]) -> Option<Vec<u8>> {
        let AtomicRequest { target, operator, datatype, count, id } = *wire_request;
        let len = usize::from(count) * datatype.size();
        let access = RegionAccess {
            may_read: matches!(id, OperationId::Receive(_)),
            may_write: operator != Operator::Read,
        };
        let part = self.regions.part(target, len as u64, access)?;
        let former = part.to_vec();
        let mut values = former.clone();
        let operand_len = if operator.has_operands() { len } else { 0 };
        let (operands, compared) = operands.split_at_checked(operand_len)?;
        apply(operator, datatype, &mut values, operands, compared)?;
        if access.may_write {
            part.fill_from(0, Payload::of_bytes(&values));
        }
        Some(former)
    }

    /// Completes an atomic operation of this node.
    pub(crate) fn complete_atomic(
        &mut self,
        request: Request,
        is_fetched: bool,
        failure: Option<Failure>,
    ) {
        let (counted, kind) = match is_fetched {
            true => (Counted::Reads, CompletionKind::FetchedAtomic),
            false => (Counted::Writes, CompletionKind::Atomic),
        };
        self.counts.add(counted, failure.is_some());
        self.complete_remote(kind, request, failure);
    }

    pub(crate) fn on_atomic(
        &mut self,
        source: u32,
        wire_request: &AtomicRequest,
        payload: Payload<'_>,
    ) -> Result<(), Violation> {
        let AtomicRequest { target, operator, datatype, count, id } = *wire_request;
        let len = usize::from(count) * datatype.size();
        let arrays = usize::from(operator.has_operands()) + usize::from(operator.compares());
        if len == 0
            || len > MAX_ATOMIC_LEN
            || payload.len() != arrays * len
            || !operator.takes(datatype)
        {
            let what = "requests an invalid atomic operation";
            return Err(Violation { source: Some(source), what });
        }
        let Some(former) = self.apply(wire_request, &payload.to_boxed()) else {
            self.refuse(source, id);
            return Ok(());
        };
        match id {
            OperationId::Send(send_id) => self.finish_send_of(source, send_id),
            OperationId::Receive(receive_id) => {
                let former = UserBuffer::of_copy(&former);
                self.answer(source, target.key, &former, Retention::Volatile, receive_id);
            }
        }
        Ok(())
    }
}
