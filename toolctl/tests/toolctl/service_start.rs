//! Tests that a tool that connects before the service has its orders is answered when they arrive.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use score_proto::frame;
use score_proto::ids::{JobHostId, JobId};
use score_proto::message::OsBytes;
use score_proto::toolctl::{ToolctlJob, ToolctlOrder};
use score_toolctl::client::ToolConnection;
use score_tools::wire::{Attach, ProcessSelect, ReturnCode, ServiceMessage, ToolRequest};

const JOB: JobId = JobId(17);

#[test]
fn a_tool_that_is_faster_than_the_first_orders_waits_for_them() {
    let path = std::env::temp_dir().join(format!("toolctl-start-{}", std::process::id()));
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(8).unwrap()).unwrap();
    let (mut shepherd, its_end) = UnixStream::pair().unwrap();
    let mut tool = ToolConnection::connect(&path, JOB.0.into(), 0).unwrap();
    std::fs::remove_file(&path).unwrap();
    let attach = Attach { tag: *b"too fast", priority: 1, select: ProcessSelect::RanksInNode };
    tool.send(0, &ToolRequest::Attach(attach)).unwrap();
    let proc = OwnedFd::from(File::open("/proc").unwrap());
    let mut service = Command::new(env!("CARGO_BIN_EXE_scored-toolctl"))
        .stdin(OwnedFd::from(its_end))
        .stdout(listener)
        .stderr(proc)
        .spawn()
        .unwrap();
    // This is enough time for the service to reach its loop. It sends nothing before it has an
    // order.
    assert!(tool.receive_record(Duration::from_millis(200)).is_err());
    let job = ToolctlJob { job: JOB, host: JobHostId::FIRST, directory: OsBytes(b"/tmp".to_vec()) };
    let mut give = |order: ToolctlOrder| {
        let mut bytes = Vec::new();
        frame::encode(&order, &mut bytes).unwrap();
        shepherd.write_all(&bytes).unwrap();
    };
    give(ToolctlOrder::Job(job));
    give(ToolctlOrder::ServeTools);
    let record = tool.receive_record(Duration::from_secs(20)).unwrap();
    let (header, message) = ServiceMessage::decode(&record).unwrap();
    // The rank does not exist, but the job is the right one.
    assert_ne!(header.code(), Some(ReturnCode::JobIdError), "{message:?}");
    assert_eq!(header.job, u64::from(JOB.0));
    give(ToolctlOrder::End);
    assert!(service.wait().unwrap().success());
}
