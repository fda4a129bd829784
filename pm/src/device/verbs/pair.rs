//! Queue pairs of the reliable connected kind: connected by raw state changes to one that another
//! process has told about.

// UNSAFETY: calls libibverbs on queue pairs that it owns.
#![expect(unsafe_code)]

use super::adapter::Adapter;
use super::bindings::{
    self, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, OPCODE_READ, OPCODE_SEND, OPCODE_WRITE,
    PairAttr, PairCap, PairInit, Piece, Route, SEND_INLINE, SEND_SIGNALED, STATE_ERR, STATE_INIT,
    STATE_RESET, STATE_RTR, STATE_RTS, SendRequest, TYPE_RC, mask,
};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Inline data that is asked for, what the adapter copies from the request instead of fetching it;
/// and how much where that is refused.
const INLINE: [u32; 3] = [128, 64, 0];
/// Work requests of one queue pair, if the adapter has as many.
pub(super) const DEPTH: usize = 256;

/// 4.096 µs times 2^14: 67 ms until a packet is sent again, six times. Seven are for ever to
/// rdma_rxe: it would not tell that the other queue pair has gone.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 6;
/// For ever: a receiver that has no buffer is slow, not gone.
const RNR_RETRIES: u8 = 7;
/// 0.64 ms.
const RNR_TIMER: u8 = 12;
const HOPS: u8 = 64;

/// Where another queue pair is, as its process tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Station {
    pub(super) number: u32,
    /// The number of its first packet.
    pub(super) psn: u32,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// Payload of a packet, as the header numbers it.
    pub(super) mtu: u8,
}

/// What is sent, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Comes back with its completion.
    pub(super) id: u64,
    pub(super) what: What,
    pub(super) piece: Piece,
    pub(super) signalled: bool,
}

/// What is done. Addresses are the peer's, each with its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Send,
    Write(u64, u32),
    Read(u64, u32),
}

/// An own queue pair.
pub(super) struct Pair {
    adapter: Arc<Adapter>,
    pair: NonNull<bindings::Pair>,
    inline: u32,
    psn: u32,
}

// SAFETY: the library's functions may be called by any thread; it is destroyed by its owner alone.
unsafe impl Send for Pair {}

impl Pair {
    /// One that is ready to be connected. Its packets begin with number `psn`.
    pub(super) fn new(adapter: &Arc<Adapter>, psn: u32) -> Result<Pair, String> {
        let mut made = INLINE.iter().map(|&inline| Pair::with_inline(adapter, psn, inline));
        made.find(Result::is_ok).unwrap_or_else(|| Pair::with_inline(adapter, psn, 0))
    }

    fn with_inline(adapter: &Arc<Adapter>, psn: u32, inline: u32) -> Result<Pair, String> {
        let cap = PairCap {
            max_send_wr: DEPTH.min(adapter.depth) as u32,
            max_send_sge: 1,
            max_inline_data: inline,
            ..PairCap::default()
        };
        let mut init = PairInit {
            qp_context: null_mut(),
            send_cq: adapter.sends,
            recv_cq: adapter.receives,
            srq: adapter.shared,
            cap,
            qp_type: TYPE_RC,
            sq_sig_all: 0,
        };
        // SAFETY: queues of the same adapter, which the pair holds.
        let made = unsafe { (adapter.library.create_qp)(adapter.domain, &raw mut init) };
        let pair = NonNull::new(made).ok_or_else(|| adapter.trouble("gives no queue pair"))?;
        let (adapter, inline) = (adapter.clone(), init.cap.max_inline_data.max(inline));
        let pair = Pair { adapter, pair, inline, psn: psn & 0xff_ffff };
        pair.initialise()?;
        Ok(pair)
    }

    /// By which completions name it.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { self.pair.as_ref() }.qp_num
    }

    /// What a peer has to know of it.
    pub(super) fn station(&self) -> Station {
        let chosen = &self.adapter.chosen;
        Station {
            number: self.number(),
            psn: self.psn,
            gid: chosen.gid.map_or([0; 16], |gid| gid.bytes),
            lid: chosen.port.lid,
            mtu: (chosen.port.mtu / 128).ilog2() as u8,
        }
    }

    fn modify(&self, attr: &mut PairAttr, which: i32) -> Result<(), String> {
        // SAFETY: a pair of this library; the structure is the header's.
        let error = unsafe {
            (self.adapter.library.modify_qp)(self.pair.as_ptr(), attr, mask::STATE | which)
        };
        if error == 0 {
            return Ok(());
        }
        let why = std::io::Error::from_raw_os_error(error);
        let (name, state) = (&self.adapter.chosen.adapter, attr.qp_state);
        Err(format!("RDMA adapter {name}: a queue pair does not come to state {state}: {why}"))
    }

    fn initialise(&self) -> Result<(), String> {
        let chosen = &self.adapter.chosen;
        let mut attr = PairAttr {
            qp_state: STATE_INIT,
            pkey_index: chosen.partition as u16,
            port_num: chosen.port.number,
            qp_access_flags: (ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ) as u32,
            ..PairAttr::default()
        };
        self.modify(&mut attr, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)
    }

    /// Back to where it can be connected again; for one that has sent nothing.
    pub(super) fn reset(&self) -> Result<(), String> {
        self.modify(&mut PairAttr { qp_state: STATE_RESET, ..PairAttr::default() }, 0)?;
        self.initialise()
    }

    /// Connects it: it receives and may send.
    pub(super) fn connect(&self, to: &Station) -> Result<(), String> {
        let chosen = &self.adapter.chosen;
        let mut gid = [0; 2];
        for (word, bytes) in gid.iter_mut().zip(to.gid.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let route = Route {
            dgid: gid,
            sgid_index: chosen.gid.map_or(0, |gid| gid.index) as u8,
            hop_limit: HOPS,
            dlid: to.lid,
            sl: chosen.level,
            is_global: u8::from(chosen.gid.is_some()),
            port_num: chosen.port.number,
            ..Route::default()
        };
        let mut attr = PairAttr {
            qp_state: STATE_RTR,
            path_mtu: u32::from(to.mtu.min(self.station().mtu).clamp(1, 5)),
            dest_qp_num: to.number,
            rq_psn: to.psn,
            max_dest_rd_atomic: self.adapter.reads,
            min_rnr_timer: RNR_TIMER,
            route,
            ..PairAttr::default()
        };
        let which = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        self.modify(&mut attr, which | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)?;
        let mut attr = PairAttr {
            qp_state: STATE_RTS,
            sq_psn: self.psn,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            max_rd_atomic: self.adapter.reads,
            ..PairAttr::default()
        };
        let which = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN;
        self.modify(&mut attr, which | mask::MAX_RD_ATOMIC)
    }

    /// Nothing is received by it any more.
    pub(super) fn fail(&self) {
        let _ = self.modify(&mut PairAttr { qp_state: STATE_ERR, ..PairAttr::default() }, 0);
    }

    /// Begins to send. False: it is broken, or full.
    ///
    /// # Safety
    /// The piece is registered memory that stays as it is until completion, or short enough to be
    /// taken along and readable now.
    #[inline(always)]
    pub(super) unsafe fn send(&self, work: Work) -> bool {
        let (mut piece, mut bad) = (work.piece, null_mut());
        let (opcode, remote_addr, rkey) = match work.what {
            What::Send => (OPCODE_SEND, 0, 0),
            What::Write(addr, rkey) => (OPCODE_WRITE, addr, rkey),
            What::Read(addr, rkey) => (OPCODE_READ, addr, rkey),
        };
        let inline = piece.length <= self.inline && opcode != OPCODE_READ;
        let flags = [(work.signalled, SEND_SIGNALED), (inline, SEND_INLINE)];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
        let mut request = SendRequest {
            wr_id: work.id,
            next: null_mut(),
            sg_list: &raw mut piece,
            num_sge: i32::from(piece.length > 0),
            opcode,
            send_flags: flags,
            imm_data: 0,
            remote_addr,
            rkey,
            rest: [0; 9],
        };
        let mut post = || {
            // SAFETY: an own pair; the library copies the request, and inline data with it.
            unsafe {
                let post = self.adapter.context.as_ref().post_send;
                post.is_some_and(|post| {
                    post(self.pair.as_ptr(), &raw mut request, &raw mut bad) == 0
                })
            }
        };
        if self.adapter.chosen.iwarp { without_signal(post) } else { post() }
    }
}

/// Posting to soft iWARP writes to a socket of the kernel's: where the peer has just ended the
/// connection this thread gets SIGPIPE, by which the application would end.
#[cold]
fn without_signal<T>(call: impl FnOnce() -> T) -> T {
    let (mut pipe, mut before) = (SigSet::empty(), SigSet::empty());
    pipe.add(Signal::SIGPIPE);
    let blocked = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&pipe), Some(&mut before));
    if blocked.is_err() || before.contains(Signal::SIGPIPE) {
        return call();
    }
    let done = call();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both live through the call, which does not wait.
    unsafe { libc::sigtimedwait(pipe.as_ref(), null_mut(), &raw const now) };
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    done
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: made in `new`; nobody else has it.
        unsafe { (self.adapter.library.destroy_qp)(self.pair.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::without_signal;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
    use std::sync::atomic::{AtomicU32, Ordering};

    static CAME: AtomicU32 = AtomicU32::new(0);

    extern "C" fn came(_: i32) {
        CAME.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_signal_of_posting_is_not_the_applications_and_others_are() {
        let action = SigAction::new(SigHandler::Handler(came), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler only counts.
        let before = unsafe { sigaction(Signal::SIGPIPE, &action) }.unwrap();
        assert_eq!(without_signal(|| raise(Signal::SIGPIPE).map(|()| 7)), Ok(7));
        assert_eq!(CAME.load(Ordering::Relaxed), 0);
        raise(Signal::SIGPIPE).unwrap();
        assert_eq!(CAME.load(Ordering::Relaxed), 1);
        // SAFETY: what was there.
        unsafe { sigaction(Signal::SIGPIPE, &before) }.unwrap();
    }
}
