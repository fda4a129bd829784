//! The global variables of table 2.1 of the manual, in the form that C uses: an atomic has the
//! layout of its integer. Before `score_initialize`, and in local execution, they describe a single
//! node.

// UNSAFETY: exports the variables under their C names.
#![expect(unsafe_code)]
#![allow(non_upper_case_globals)]

use std::ffi::c_int;

use crate::pm;
use crate::pm_h::pmContext;
use crate::sync::{AtomicI32, AtomicPtr, Ordering};

macro_rules! number {
    ($name:ident, $start:literal, $get:ident, $meaning:literal) => {
        #[doc = $meaning]
        #[unsafe(no_mangle)]
        pub static $name: AtomicI32 = AtomicI32::new($start);

        #[doc = $meaning]
        pub fn $get() -> usize {
            usize::try_from($name.load(Ordering::Relaxed)).unwrap_or(0)
        }
    };
}

number!(score_self_node, 0, self_node, "Node number of this process.");
number!(score_self_proc, 0, self_proc, "Number of this process on its host.");
number!(score_self_host, 0, self_host, "Number of this host.");
number!(score_num_node, 1, num_node, "Nodes of this parallel process.");
number!(score_num_proc, 1, num_proc, "Processes on this host.");
number!(score_num_host, 1, num_host, "Hosts of this parallel process.");
number!(score_num_pmnet, 0, num_pmnet, "Network sets; none if there is only one node.");

/// A list of contexts that ends with NULL.
type Contexts = AtomicPtr<*mut pmContext>;

/// The empty list to which `score_pmnet` points while there is no network.
static NO_CONTEXTS: AtomicPtr<pmContext> = AtomicPtr::new(std::ptr::null_mut());

/// The composite contexts, one per network set, with a NULL after the last.
#[unsafe(no_mangle)]
pub static score_pmnet: Contexts = Contexts::new((&raw const NO_CONTEXTS).cast_mut().cast());

/// The numbers of a process in its job (manual, table 2.1).
pub(crate) struct ProcessLocation {
    pub(crate) node: (u32, u32),
    pub(crate) proc: (u32, u32),
    pub(crate) host: (u32, u32),
}

/// Sets all of these variables. `contexts` is never freed.
pub(crate) fn publish(location: &ProcessLocation, contexts: &'static [*mut pmContext]) {
    let set = |variable: &AtomicI32, value: u32| {
        variable.store(c_int::try_from(value).unwrap_or(c_int::MAX), Ordering::Relaxed);
    };
    set(&score_self_node, location.node.0);
    set(&score_num_node, location.node.1);
    set(&score_self_proc, location.proc.0);
    set(&score_num_proc, location.proc.1);
    set(&score_self_host, location.host.0);
    set(&score_num_host, location.host.1);
    let set_count = contexts.iter().take_while(|context| !context.is_null()).count();
    set(&score_num_pmnet, u32::try_from(set_count).unwrap_or(0));
    score_pmnet.store(contexts.as_ptr().cast_mut(), Ordering::Relaxed);
}

/// The composite context of network set `set`.
pub(crate) fn context(set: usize) -> Option<pm::Context> {
    if set >= num_pmnet() {
        return None;
    }
    let first = score_pmnet.load(Ordering::Relaxed);
    // SAFETY: `publish` has set a list of more than `set` entries that is never freed. (A program
    // that overwrites the C variable has the same undefined behaviour as in C.)
    pm::Context::from_ptr(unsafe { *first.add(set) })
}
