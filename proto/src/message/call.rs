//! The calls of a process to its shepherd, the replies, and the networks that the process gets with
//! them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::frame::{self, FrameError};
use crate::ids::{JobHostId, JobId, ProcessIndex};
use crate::nodeset::NodeSet;

/// From a process to its shepherd, one datagram each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// score_initialize. [`Reply::Welcome`] answers it when all nodes of the parallel process have
    /// called (the start barrier).
    Attach {
        /// [`crate::PROTOCOL_VERSION`] of the library.
        version: u32,
    },
    /// sc_barrier. [`Reply::Done`] answers it when all nodes have called.
    Barrier {
        /// Chosen by the caller, and repeated in the reply.
        id: u32,
    },
    /// sc_flush. Answered when scrun has written all output that the processes wrote earlier.
    Flush {
        /// Chosen by the caller, and repeated in the reply.
        id: u32,
    },
    /// sc_signal_bcast. Answered when the signal has been sent.
    SignalBroadcast {
        /// Chosen by the caller, and repeated in the reply.
        id: u32,
        /// Signal number.
        signal: i32,
    },
    /// sc_exit: ends the parallel process with this code. Never answered.
    Exit {
        /// Exit code of the parallel process (low 8 bits).
        code: i32,
    },
    /// sc_inspectme: notifies the user and ends the parallel process. Never answered.
    Inspect {
        /// A hint for the user.
        signal: i32,
        /// X display, if the caller gave one.
        display: Option<String>,
        /// The id of the calling thread, in the PID namespace of the process.
        thread: i32,
    },
    /// sc_sleep: the whole job is not scheduled for this time. Never answered, because the caller
    /// measures the time itself.
    Sleep {
        /// Number of seconds.
        seconds: u32,
    },
    /// sc_yield: the job gives up the rest of its slice. Never answered.
    Yield,
    /// A thread is about to be killed by a signal, and waits until its stack has been read. Any
    /// process may send it, even before it attaches. The shepherd answers by sending the same
    /// signal to the thread.
    Fault {
        /// Signal number.
        signal: i32,
        /// The id of the thread, in the PID namespace of the process.
        thread: i32,
    },
}

/// Encodes [`Call::Exit`] without heap allocation, because `sc_exit` may be called
/// in a signal handler.
///
/// # Errors
/// [`FrameError::TooLong`] if `out` is too short.
pub fn encode_exit(code: i32, out: &mut [u8]) -> Result<&[u8], FrameError> {
    // postcard encodes an enum as the number of its variant, followed by the fields.
    frame::encode_slice(&(EXIT_VARIANT, code), out)
}

/// Encodes [`Call::Inspect`] without heap allocation, because `sc_inspectme` is
/// called in signal handlers (manual 2.4.4).
///
/// # Errors
/// [`FrameError::TooLong`] if `out` is too short.
pub fn encode_inspect<'o>(
    signal: i32,
    display: Option<&str>,
    thread: i32,
    out: &'o mut [u8],
) -> Result<&'o [u8], FrameError> {
    frame::encode_slice(&(INSPECT_VARIANT, signal, display, thread), out)
}

/// Encodes [`Call::Fault`] without heap allocation, because a signal handler sends
/// it.
///
/// # Errors
/// [`FrameError::TooLong`] if `out` is too short.
pub fn encode_fault(signal: i32, thread: i32, out: &mut [u8]) -> Result<&[u8], FrameError> {
    frame::encode_slice(&(FAULT_VARIANT, signal, thread), out)
}

/// Number of the variant `Call::Exit`.
const EXIT_VARIANT: u32 = 4;
/// Number of the variant `Call::Inspect`.
const INSPECT_VARIANT: u32 = 5;
/// Number of the variant `Call::Fault`.
const FAULT_VARIANT: u32 = 8;

/// From a shepherd to its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The answer to [`Call::Attach`]. It carries descriptors as SCM_RIGHTS in this order: the
    /// board (read-only), the C-Area, then one PM attach descriptor per member of each network set.
    Welcome(Box<Welcome>),
    /// The call was refused. The process prints the line and exits.
    Refused(String),
    /// The answer to the call with this id.
    Done {
        /// The caller's id.
        id: u32,
        /// 0 or a positive errno value.
        error: i32,
    },
}

/// The data for score_initialize.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Job number.
    pub job: JobId,
    /// Index of this process's area in the C-Area.
    pub area: u32,
    /// The value of `score_self_node` (manual, table 2.1).
    pub self_node: u32,
    /// The value of `score_num_node` (manual, table 2.1).
    pub num_node: u32,
    /// The value of `score_self_proc` (manual, table 2.1).
    pub self_proc: ProcessIndex,
    /// The value of `score_num_proc` (manual, table 2.1).
    pub num_proc: u32,
    /// The value of `score_self_host` (manual, table 2.1).
    pub self_host: JobHostId,
    /// The value of `score_num_host` (manual, table 2.1).
    pub num_host: u32,
    /// The network sets. There are none if there is only one node.
    pub networks: Vec<NetworkSet>,
    /// scrun's options, the leftmost one first.
    pub options: Vec<(String, Option<String>)>,
    /// The job's directory.
    pub dir: String,
    /// Abstract name of the datagram socket to which the process sends notifications
    /// ([`crate::idle_notify`]).
    #[serde(with = "serde_bytes")]
    pub notify_socket_name: Vec<u8>,
}

/// One network set (manual 2.1): the PM contexts that together reach every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSet {
    /// The contexts, in the order of their attach descriptors.
    pub members: Vec<NetworkMember>,
}

/// A PM context of a network set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkMember {
    /// The type of its device.
    pub device: NetworkDevice,
    /// The nodes that the context reaches. Each node, including the process's own, is in one range
    /// of one member.
    pub node_ranges: Vec<NodeMapping>,
}

/// The kinds of devices of which a process can get contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkDevice {
    /// Reaches processes of one host.
    Shmem,
    /// Reaches processes of any host.
    Ethernet,
    /// Reaches processes of hosts with RDMA hardware.
    Verbs,
}

/// Consecutive nodes that have consecutive numbers in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMapping {
    /// The first node of the range.
    pub first: u32,
    /// Number of nodes.
    pub count: u32,
    /// The number of the first node in the context.
    pub first_in_context: u32,
}

impl NetworkSet {
    /// All `node_count` nodes, reached through shared memory.
    pub fn one_host(node_count: u32) -> Self {
        let node_ranges = vec![NodeMapping { first: 0, count: node_count, first_in_context: 0 }];
        Self { members: vec![NetworkMember { device: NetworkDevice::Shmem, node_ranges }] }
    }

    /// The network set of a host with the nodes `local_nodes`. Several nodes reach each other
    /// through shared memory. `others`: devices for the other nodes. These devices use the same
    /// node numbers as the job.
    pub fn many_hosts(local_nodes: Range<u32>, others: &[(NetworkDevice, NodeSet)]) -> Self {
        let mut members = Vec::new();
        if local_nodes.len() > 1 {
            let node_ranges = vec![NodeMapping {
                first: local_nodes.start,
                count: local_nodes.len() as u32,
                first_in_context: 0,
            }];
            members.push(NetworkMember { device: NetworkDevice::Shmem, node_ranges });
        }
        for (device, nodes) in others {
            let mut nodes = nodes.clone();
            if members.is_empty() {
                nodes.insert_range(local_nodes.clone());
            }
            let node_range = |Range { start, end }| NodeMapping {
                first: start,
                count: end - start,
                first_in_context: start,
            };
            let node_ranges = nodes.ranges().map(node_range).collect();
            members.push(NetworkMember { device: *device, node_ranges });
        }
        Self { members }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_inspect_and_fault_encode_the_same_without_the_heap() {
        let mut buffer = [0; 64];
        let exit = Call::Exit { code: -7 };
        assert_eq!(encode_exit(-7, &mut buffer).unwrap(), frame::encode_datagram(&exit).unwrap());
        for display in [None, Some(":0".to_owned())] {
            let bytes = encode_inspect(11, display.as_deref(), 7, &mut buffer).unwrap();
            let call = Call::Inspect { signal: 11, display, thread: 7 };
            assert_eq!(bytes, frame::encode_datagram(&call).unwrap());
        }
        assert!(encode_inspect(11, Some("far too long"), 7, &mut [0; 4]).is_err());
        let fault = Call::Fault { signal: 6, thread: 70_000 };
        assert_eq!(
            encode_fault(6, 70_000, &mut buffer),
            Ok(&frame::encode_datagram(&fault).unwrap()[..])
        );
    }

    #[test]
    fn nodes_of_one_host_share_memory_and_a_single_node_uses_the_device_for_others() {
        let others = [(NetworkDevice::Ethernet, NodeSet::from(5..9))];
        let member = |device, first, count, first_in_context| NetworkMember {
            device,
            node_ranges: vec![NodeMapping { first, count, first_in_context }],
        };
        let several = NetworkSet::many_hosts(3..5, &others);
        let expected =
            [member(NetworkDevice::Shmem, 3, 2, 0), member(NetworkDevice::Ethernet, 5, 4, 5)];
        assert_eq!(several.members, expected);
        let single = NetworkSet::many_hosts(4..5, &others);
        assert_eq!(single.members, [member(NetworkDevice::Ethernet, 4, 5, 4)]);
    }
}
