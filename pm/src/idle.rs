//! The tie between sending and the idle flag (manual 3.5.2): an idle process sends nothing.

// UNSAFETY: dereferences the word that the runtime library registered.
#![expect(unsafe_code)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// What is called when a message is sent while threads are idle.
pub type IdleCallback = extern "C" fn();

static IDLE_COUNT: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
static IDLE_CALLBACK: AtomicUsize = AtomicUsize::new(0);

/// Says where the process's count of idle threads stands (`pmSetIdleWord`); null takes it back.
/// From then on a send loads it and, when it is above 0, calls `callback` first.
///
/// # Safety
/// `word` is null or stays valid until another is set and no send is under way.
pub unsafe fn set_idle_word(word: *const AtomicU32, callback: IdleCallback) {
    IDLE_CALLBACK.store(callback as usize, Ordering::Relaxed);
    // SYNC: idle-word (the callback is visible to whoever sees the word)
    IDLE_COUNT.store(word.cast_mut(), Ordering::Release);
}

/// Called by every send, before the message becomes visible.
#[inline(always)]
pub(crate) fn before_send() {
    if is_idle() {
        run_callback();
    }
}

/// Whether `before_send` would call back.
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
    // SAFETY: stored by set_idle_word from an IdleCallback before the word that led here.
    let callback: IdleCallback = unsafe { std::mem::transmute(callback) };
    callback();
}
