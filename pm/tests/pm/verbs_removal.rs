//! Tests an adapter that is removed while contexts are open. This is the last test in the virtual
//! machine, which has no adapter afterwards. It does nothing elsewhere.

use crate::testbed::*;
use score_pm::*;
use std::process::Command;
use std::time::{Duration, Instant};

// Promise (messages): If an RDMA adapter is removed while contexts are open, every peer is EIO, a
// line reports it, and nothing hangs.
#[test]
fn every_peer_of_a_removed_adapter_is_an_error_and_no_call_hangs() {
    let _dog = Watchdog::new(120);
    let Some(adapter) = adapter() else { return };
    let bed = TestBed::new("verbs", 3);
    let end = &bed.contexts[0];
    send_surely(end, 1, b"before");
    assert_eq!(receive_surely(&bed.contexts[1]), b"before");
    let lock = |end: &Context| {
        let at = end.allocate_memory(64).unwrap();
        end.lock_memory(None, at.addr(), 64).unwrap()
    };
    let (local_handle, remote_handle) = (lock(end), lock(&bed.contexts[1]));
    let remove = Command::new("rdma").args(["link", "delete", adapter]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Node 2 was never connected.
    for node in [1, 2] {
        let refused = || match send(end, node, b"after") {
            Err(Error::Io) => true,
            Ok(()) | Err(Error::NoBuffers) => false,
            other => panic!("{other:?}"),
        };
        while !refused() {
            assert!(Instant::now() < deadline, "{adapter}: node {node} is never refused");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // It is unknown whether the last message has arrived, but the query returns.
    assert_ne!(end.is_send_done(), Err(Error::Busy));
    assert_eq!(end.write(1, remote_handle, local_handle, 64), Err(Error::Io));
    assert_ne!(end.is_write_done(), Err(Error::Busy));
    let status = end.remote_status(1).unwrap();
    assert_eq!((status.started, status.completed), (0, 0), "it was refused");
    assert_eq!(receive(end), Err(Error::NoBuffers));
    // The kernel waits until no process has the adapter open.
    drop((bed, remove));
}
