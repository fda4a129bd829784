//! The check of the idle flag by sends (manual 3.5.2): an idle process sends no message.

// UNSAFETY: dereferences the word that the runtime library registered.
#![expect(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// The function that a send calls while threads are idle.
pub type IdleCallback = extern "C" fn();

static IDLE_COUNT: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
static IDLE_CALLBACK: AtomicUsize = AtomicUsize::new(0);

/// Registers the word with the process's count of idle threads (`pmSetIdleWord`); null removes it.
/// From then on a send loads the word. If the word is above 0, the send first calls `callback`.
///
/// # Safety
/// `word` is null or stays valid until another word is set and no send is in progress.
pub unsafe fn set_idle_word(word: *const AtomicU32, callback: IdleCallback) {
    IDLE_CALLBACK.store(callback as usize, Ordering::Relaxed);
    // SYNC: idle-word (a thread that sees the word also sees the callback)
    IDLE_COUNT.store(word.cast_mut(), Ordering::Release);
}

/// Called before a message becomes visible, and before a remote memory operation starts.
#[inline(always)]
pub(crate) fn before_send() {
    if is_idle() {
        run_callback();
    }
}

/// Whether `before_send` would call the registered function.
#[inline(always)]
pub(crate) fn is_idle() -> bool {
    // SYNC: idle-word
    let word = IDLE_COUNT.load(Ordering::Acquire);
    // SAFETY: registered by set_idle_word, whose caller keeps it valid.
    !word.is_null() && unsafe { (*word).load(Ordering::Relaxed) } != 0
}

#[cold]
fn run_callback() {
    let callback = IDLE_CALLBACK.load(Ordering::Relaxed);
    // SAFETY: set_idle_word stored an IdleCallback, and did so before the word that was loaded.
    let callback: IdleCallback = unsafe { std::mem::transmute(callback) };
    callback();
}
