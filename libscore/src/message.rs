//! A received message.

use std::marker::PhantomData;
use std::ops::Deref;

use crate::idle;
use crate::pm::Context;

/// A message in PM's buffer, which is released when the message is dropped. While a message is
/// held, no other message can be received from the same network set.
pub struct Message<'n> {
    context: Context,
    bytes: &'n [u8],
    /// The type is not `Send`, because the thread that drops the message becomes busy. This must be
    /// the thread that has received it.
    _thread: PhantomData<*const ()>,
}

impl<'n> Message<'n> {
    /// `bytes` is the buffer that `context` has just returned.
    pub(crate) fn new(context: Context, bytes: &'n [u8]) -> Self {
        Self { context, bytes, _thread: PhantomData }
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        // The thread becomes busy before the release (manual 2.3). Otherwise there would be a
        // moment in which the message counts as received and the process as idle.
        idle::become_busy();
        // A held message can always be released.
        let released = self.context.release();
        debug_assert!(released.is_ok(), "{released:?}");
    }
}
