//! A peer's operations on the own memory: the write that is coming in, and answers that are owed.

use super::{Chain, From, Next, OWED, Side};
use crate::config::RMA_MTU;
use crate::remote::AddrHandle;
use score_proto::remote::Frame;
use std::collections::VecDeque;

enum Owed {
    Written { number: u32, failed: bool },
    Data { number: u32, handle: AddrHandle, len: usize, sent: usize, broken: bool },
}

#[derive(Default)]
pub(super) struct Target {
    /// The write whose last piece has not come, and whether it has failed.
    coming: Option<(u32, bool)>,
    owed: VecDeque<Owed>,
}

impl Target {
    /// Answers whether its bytes are wanted. None: it is refused.
    pub(super) fn piece(&mut self, number: u32, bytes: usize, last: bool) -> Option<bool> {
        let known = self.coming.filter(|(coming, _)| *coming == number);
        let failed = known.is_some_and(|(_, failed)| failed);
        self.coming = (!last).then_some((number, failed));
        if last {
            if self.owed.len() >= OWED {
                return None;
            }
            self.owed.push_back(Owed::Written { number, failed });
        }
        Some(bytes > 0 && !failed)
    }

    /// False: it is refused.
    pub(super) fn ask(&mut self, number: u32, handle: AddrHandle, len: u64) -> bool {
        if self.owed.len() >= OWED {
            return false;
        }
        let fits = usize::try_from(len).ok().filter(|len| (1..=RMA_MTU).contains(len));
        let (len, broken) = (fits.unwrap_or(0), fits.is_none());
        self.owed.push_back(Owed::Data { number, handle, len, sent: 0, broken });
        true
    }

    /// The bytes of a piece cannot be written.
    pub(super) fn spoil(&mut self, spoilt: u32) {
        if let Some((number, failed)) = &mut self.coming
            && *number == spoilt
        {
            *failed = true;
        }
        for owed in &mut self.owed {
            if let Owed::Written { number, failed } = owed
                && *number == spoilt
            {
                *failed = true;
            }
        }
    }

    pub(super) fn next(&mut self) -> Next {
        let next = match self.owed.front() {
            None => return Next::Nothing,
            Some(&Owed::Written { number, failed }) => Frame::Written { number, failed },
            Some(&Owed::Data { number, sent, broken: true, .. }) => {
                Frame::Data { number, last: true, failed: true, offset: sent as u64 }
            }
            Some(&Owed::Data { number, handle, len, sent, .. }) => {
                let (side, place) = (Side::Target, sent as u64);
                let from = From::Region(handle + sent as u64);
                let left = len - sent;
                return Next::Chain(Chain { side, from, left, number, place, goes_on: false });
            }
        };
        self.owed.pop_front();
        Next::Frame(next)
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        if let Some(Owed::Data { len, sent, .. }) = self.owed.front_mut() {
            *sent += bytes;
            if *sent >= *len {
                self.owed.pop_front();
            }
        }
    }

    pub(super) fn cut(&mut self) {
        if let Some(Owed::Data { broken, .. }) = self.owed.front_mut() {
            *broken = true;
        }
    }

    pub(super) fn owed(&self) -> usize {
        self.owed.len()
    }
}
