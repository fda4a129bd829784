//! `libpm-fi.so`: a provider of libfabric (fi_provider(7)). MPI libraries that use libfabric send
//! and receive through PM by it, unchanged: MPICH by its netmod `ofi`, Open MPI by its MTL `ofi`.
//!
//! | file | what is in it |
//! |---|---|
//! | `abi.rs` | libfabric's binary interface |
//! | `library.rs` | the entry point, and the libfabric that has loaded the provider |
//! | `info.rs` | what the provider offers: fi_getinfo(3) |
//! | `fabric.rs`, `domain.rs` | the objects that others are opened from; event queues |
//! | `address_vector.rs` | addresses: fi_av(3) |
//! | `completion_queue.rs` | what has completed: fi_cq(3) |
//! | `counter.rs` | counters: fi_cntr(3) |
//! | `waiting.rs` | descriptors to wait on: fi_trywait(3) |
//! | `endpoint.rs` | endpoints and their options: fi_endpoint(3) |
//! | `tagged.rs`, `untagged.rs`, `messages.rs` | messages: fi_tagged(3), fi_msg(3) |
//! | `memory_region.rs`, `remote_memory.rs` | remote memory: fi_mr(3), fi_rma(3) |
//! | `atomics.rs` | atomic operations on it: fi_atomic(3) |
//! | `earlier_looks.rs` | why the first look for a message finds nothing |
//! | `kernel_symbols.rs` | hides /proc/kallsyms from libfabric while it starts |
//! | `idle_mark.rs` | idle flags of threads that wait |
//! | `deadlock_signal.rs` | the signal of a deadlock, which asks for a debugger |
//! | `core_state.rs` | the state behind them: the protocol's engine, the queues |
//! | `endpoint_network.rs` | the one PM context, which endpoints share |
//! | `pm_network.rs`, `pm_h.rs` | PM, by its C functions |
//! | `accesses.rs`, `pm_accesses.rs` | which reads and writes by PM have ended |
//! | `serialized.rs` | the lock around the state |
//!
//! An address is the number of a node and that of an endpoint, which reaches those of the same
//! number: processes of a job open their endpoints in the same order.
//! Progress is made by the program's calls (`FI_PROGRESS_MANUAL`): when it reads a completion
//! queue. The protocol is in the crate `score-p2p`.

// UNSAFETY: every function is called by C, with addresses of its objects.
#![expect(unsafe_code)]

mod abi;
mod accesses;
mod address_vector;
mod atomics;
mod completion_queue;
mod core_state;
mod counter;
mod deadlock_signal;
mod domain;
mod earlier_looks;
mod endpoint;
mod endpoint_network;
mod fabric;
mod idle_mark;
mod info;
mod kernel_symbols;
mod library;
mod memory_region;
mod messages;
mod op_table;
mod pm_accesses;
mod pm_h;
mod pm_network;
mod remote_memory;
mod serialized;
mod tagged;
mod untagged;
mod waiting;

/// The return value for a failure: libfabric's functions return negative error numbers.
const fn failed(error: i32) -> i32 {
    -error
}

/// The same for functions that return a length.
const fn failed_call(error: i32) -> isize {
    -(error as isize)
}
