//! Tests of libpm: its functions on each device, and parts of its devices. They are one program,
//! because each program is linked separately, and because its tests run at the same time. A test
//! that needs a process of its own is in another program of this directory.

// UNSAFETY: messages are raw memory, processes inherit descriptors, and tests call the kernel.
#![expect(unsafe_code)]

mod conformance;
mod corpus;
mod ethernet;
mod flooding;
mod hostile;
mod hosts;
mod links;
mod owner;
mod processes;
mod receive_fairness;
mod remote;
mod remote_hosts;
mod roles;
mod serialized;
mod testbed;
mod verbs;
mod verbs_machines;
mod verbs_processes;
mod verbs_remote;
mod verbs_removal;
mod wires;
