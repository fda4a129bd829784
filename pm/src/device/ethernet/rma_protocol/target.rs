//! The operations of one peer on memory of this node: the incoming write, and the pending
//! responses.

use super::{
    FragmentStream, MAX_PENDING_RESPONSES, NextTransmission, OperationNumber, OperationRole,
    PayloadSource,
};
use crate::config::RMA_MTU;
use crate::rma::AddrHandle;
use score_pm_reliability::rma_frame::Frame;
use std::collections::VecDeque;

enum PendingResponse {
    Written { number: OperationNumber, failed: bool },
    Data { number: OperationNumber, handle: AddrHandle, len: usize, sent: usize, failed: bool },
}

#[derive(Default)]
pub(super) struct RmaTarget {
    /// The write whose last fragment was not received yet, and whether it has failed.
    incoming_write: Option<(OperationNumber, bool)>,
    pending_responses: VecDeque<PendingResponse>,
}

impl RmaTarget {
    /// Handles a fragment of a write. Returns whether its bytes are to be copied, or None if the
    /// fragment is refused because too many responses are pending.
    pub(super) fn on_write_fragment(
        &mut self,
        number: OperationNumber,
        bytes: usize,
        last: bool,
    ) -> Option<bool> {
        let current = self.incoming_write.filter(|(incoming, _)| *incoming == number);
        let failed = current.is_some_and(|(_, failed)| failed);
        self.incoming_write = (!last).then_some((number, failed));
        if last {
            if self.pending_responses.len() >= MAX_PENDING_RESPONSES {
                return None;
            }
            self.pending_responses.push_back(PendingResponse::Written { number, failed });
        }
        Some(bytes > 0 && !failed)
    }

    /// Queues the response to a read. Returns false if too many responses are pending.
    pub(super) fn on_read_request(
        &mut self,
        number: OperationNumber,
        handle: AddrHandle,
        len: u64,
    ) -> bool {
        if self.pending_responses.len() >= MAX_PENDING_RESPONSES {
            return false;
        }
        let fits = usize::try_from(len).ok().filter(|len| (1..=RMA_MTU).contains(len));
        let (len, failed) = (fits.unwrap_or(0), fits.is_none());
        self.pending_responses.push_back(PendingResponse::Data {
            number,
            handle,
            len,
            sent: 0,
            failed,
        });
        true
    }

    /// Marks a write as failed, because bytes of a fragment cannot be written.
    pub(super) fn fail_write(&mut self, failed_number: OperationNumber) {
        if let Some((number, failed)) = &mut self.incoming_write
            && *number == failed_number
        {
            *failed = true;
        }
        for response in &mut self.pending_responses {
            if let PendingResponse::Written { number, failed } = response
                && *number == failed_number
            {
                *failed = true;
            }
        }
    }

    pub(super) fn next(&mut self) -> NextTransmission {
        let next = match self.pending_responses.front() {
            None => return NextTransmission::Nothing,
            Some(&PendingResponse::Written { number, failed }) => {
                Frame::WriteAck { number: number.0, failed }
            }
            Some(&PendingResponse::Data { number, sent, failed: true, .. }) => {
                let (number, offset) = (number.0, sent as u64);
                Frame::ReadResponse { number, last: true, failed: true, offset }
            }
            Some(&PendingResponse::Data { number, handle, len, sent, .. }) => {
                let (side, position) = (OperationRole::Target, sent as u64);
                let source = PayloadSource::Region(handle + sent as u64);
                let remaining = len - sent;
                return NextTransmission::Fragments(FragmentStream {
                    side,
                    source,
                    remaining,
                    number,
                    position,
                    is_continuation: false,
                });
            }
        };
        self.pending_responses.pop_front();
        NextTransmission::Frame(next)
    }

    pub(super) fn on_bytes_sent(&mut self, bytes: usize) {
        if let Some(PendingResponse::Data { len, sent, .. }) = self.pending_responses.front_mut() {
            *sent += bytes;
            if *sent >= *len {
                self.pending_responses.pop_front();
            }
        }
    }

    pub(super) fn fail_read(&mut self) {
        if let Some(PendingResponse::Data { failed, .. }) = self.pending_responses.front_mut() {
            *failed = true;
        }
    }

    pub(super) fn pending_count(&self) -> usize {
        self.pending_responses.len()
    }
}
