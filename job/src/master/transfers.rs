//! The requests of hosts that scrun answers: bytes of programs, and flushes of output.

use std::collections::HashMap;

use score_proto::ids::JobHostId;
use score_proto::job_control::{FileRequest, JobOrder, Order, ProgramAnswer};
use score_proto::server_message::JobAnswer;

use super::Outbox;

/// The requests of hosts that scrun has not answered.
#[derive(Debug, Default)]
pub struct ClientTransfers {
    /// The host of each flush and the host's token, by the token that scrun gets.
    pending_flushes: HashMap<u64, (JobHostId, u64)>,
    next_flush: u64,
    /// Bytes of programs that scrun has not sent.
    requested_file_bytes: u64,
}

impl ClientTransfers {
    /// A host requests bytes of a program.
    pub fn on_file_request(&mut self, request: FileRequest, out: &mut Outbox) {
        let FileRequest { hash, offset, length } = request;
        self.requested_file_bytes = self.requested_file_bytes.saturating_add(length);
        out.to_client(JobAnswer::FileRequest { hash, offset, length });
    }

    /// scrun sends a piece of a program. Bytes that the hosts have not requested are dropped.
    pub fn on_file_chunk(&mut self, answer: ProgramAnswer, out: &mut Outbox) {
        if let Some(left) = self.requested_file_bytes.checked_sub(answer.charge()) {
            self.requested_file_bytes = left;
            out.order(Order::Program(answer));
        }
    }

    /// A host waits until scrun has written all output so far. The host has chosen the token.
    pub fn on_flush(&mut self, host: JobHostId, token: u64, out: &mut Outbox) {
        self.pending_flushes.insert(self.next_flush, (host, token));
        out.to_client(JobAnswer::Flush(self.next_flush));
        self.next_flush += 1;
    }

    /// scrun has written the output.
    pub fn on_flushed(&mut self, token: u64, out: &mut Outbox) {
        if let Some((host, token)) = self.pending_flushes.remove(&token) {
            out.job_order(JobOrder::Flushed { host, token });
        }
    }

    /// The processes that waited for a flush have ended.
    pub fn forget_flushes(&mut self) {
        self.pending_flushes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_of_an_earlier_stage_is_not_answered() {
        let (mut transfers, mut out) = (ClientTransfers::default(), Outbox::default());
        transfers.on_flush(JobHostId(1), 8, &mut out);
        transfers.forget_flushes();
        transfers.on_flush(JobHostId(2), 9, &mut out);
        out.take();
        transfers.on_flushed(0, &mut out);
        assert_eq!(out.take(), []);
        transfers.on_flushed(1, &mut out);
        assert_eq!(out.take().len(), 1);
    }
}
