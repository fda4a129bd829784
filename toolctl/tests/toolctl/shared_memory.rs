//! Tests of ShareMemory and Copy Memory: the service, a tool and a process, as in a job. Hostile
//! tools get an error, and leave no descriptor in the service.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::support::job::{ANSWER_TIMEOUT, Job};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use score_sys::{fd_passing, memfd};
use score_toolctl::client::ReadMemoryError;
use score_toolctl::shared_memory::SharedMemory;
use score_tools::wire::*;

impl Job {
    /// Shares memory. Returns the length in the answer, or the error.
    fn share(&mut self, fds: &[BorrowedFd<'_>]) -> Result<u64, (ReturnCode, u32)> {
        let (code, error, answer) = self.send(&ToolRequest::ShareMemory, fds);
        match ServiceMessage::decode(&answer).unwrap().1 {
            ServiceMessage::ShareMemoryAck(body) if code == ReturnCode::Success => Ok(body.length),
            ServiceMessage::ShareMemoryAck(SharedLength { length: 0 }) => Err((code, error)),
            other => panic!("{other:?}"),
        }
    }

    /// Copies memory. Returns the number of bytes, or the code of the command.
    fn copy(&mut self, address: u64, length: u32, offset: u32) -> Result<u32, CommandCode> {
        let request = CommandRequest::CopyMemory(MemoryCopy { address, length, offset });
        let query = [Command { thread: 0, request }];
        let (code, _, answer) = self.send(&ToolRequest::Query(&query), &[]);
        assert_eq!(code, ReturnCode::Success);
        let (_, ServiceMessage::QueryAck(results)) = ServiceMessage::decode(&answer).unwrap()
        else {
            panic!("{answer:?}");
        };
        match (CommandCode::from_number(results[0].return_code).unwrap(), &results[0].answer) {
            (CommandCode::Success, Some(CommandAnswer::CopyMemory(copy))) => {
                assert_eq!((copy.address, copy.offset), (address, offset));
                Ok(copy.length)
            }
            (code, None) => Err(code),
            other => panic!("{other:?}"),
        }
    }

    /// The number of descriptors of the service, and of its mappings of memory of tools. `None` if
    /// only root may see them.
    fn resources(&self) -> Option<(usize, usize)> {
        let proc = format!("/proc/{}", self.service.id());
        let descriptors = std::fs::read_dir(format!("{proc}/fd")).ok()?.count();
        let map = std::fs::read_to_string(format!("{proc}/maps")).ok()?;
        Some((descriptors, map.lines().filter(|line| line.contains("memfd:")).count()))
    }
}

/// Reads the shared memory.
fn bytes_of(memory: &SharedMemory, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes);
    bytes
}

#[test]
fn a_query_copies_a_megabyte_and_hides_breakpoints() {
    let Some(mut job) = Job::attached("copies") else { return };
    let len = 1 << 20;
    let (memory, memfd) = SharedMemory::create(len + 4096).unwrap();
    assert_eq!(job.copy(8, 1, 0), Err(CommandCode::LengthError), "nothing is shared");
    assert_eq!(job.share(&[memfd.as_fd()]), Ok((len + 4096) as u64));
    let settings = Control {
        notify_set: 0,
        signal: 0,
        start_notice: StartNotice::DynamicLoader,
        trap_mode: TrapMode::NoChange,
        watch_policy: WatchPolicy::Propagate,
    };
    assert_eq!(job.send(&ToolRequest::Control(settings), &[]).0, ReturnCode::Success);

    // The test writes a megabyte into the process.
    let block = job.session.address("block");
    let bytes: Vec<u8> = (0..len).map(|index| (index / 7) as u8).collect();
    assert!(score_toolctl::tracer::memory::write_raw(job.session.pid, block, &bytes));
    assert_eq!(job.copy(block, len as u32, 100), Ok(len as u32));
    assert_eq!(bytes_of(&memory, 100, len), bytes);
    assert_eq!(bytes_of(&memory, 0, 100), [0; 100]);
    let mut read = vec![0; len];
    job.tool.read_memory(0, block, &mut read, ANSWER_TIMEOUT).unwrap();
    assert_eq!(read, bytes);
    let view = job.tool.view_memory(0, block, len, ANSWER_TIMEOUT).unwrap();
    assert!(view.iter().map(|byte| byte.load(Relaxed)).eq(bytes.iter().copied()));
    for wrong in [0, len + 1] {
        let failure = job.tool.view_memory(0, block, wrong, ANSWER_TIMEOUT);
        assert!(matches!(failure, Err(ReadMemoryError::Io(_))), "{wrong}: {failure:?}");
    }

    let spot = job.session.address("spot");
    let original = job.session.raw_byte(spot);
    job.update(CommandRequest::SetBreakpoint(NewBreakpoint {
        address: spot,
        kind: BreakpointKind::Normal,
    }));
    // While a thread passes the breakpoint, the byte is the original one.
    job.session.until("breakpoint", |session| (session.raw_byte(spot) == 0xcc).then_some(()));
    // The client of the tool has replaced the memory by its own.
    assert_eq!(job.share(&[memfd.as_fd()]), Ok((len + 4096) as u64));
    assert_eq!(job.copy(spot - 3, 20, 50), Ok(20));
    assert_eq!(bytes_of(&memory, 53, 1), [original]);
    job.end();
}

#[test]
fn a_range_is_within_the_memory_and_the_answer_says_how_much_is_valid() {
    let Some(mut job) = Job::attached("ranges") else { return };
    let (memory, memfd) = SharedMemory::create(8192).unwrap();
    assert_eq!(job.share(&[memfd.as_fd()]), Ok(8192));
    let constant = job.session.address("constant");
    for (length, offset) in [
        (0, 0),
        (8193, 0),
        (1, 8192),
        (2, 8191),
        (u32::MAX, 0),
        (1, u32::MAX),
        (u32::MAX, u32::MAX),
    ] {
        let refused = job.copy(constant, length, offset);
        assert_eq!(refused, Err(CommandCode::LengthError), "{length} {offset}");
    }
    assert_eq!(job.copy(constant, 14, 8192 - 14), Ok(14));
    assert_eq!(bytes_of(&memory, 8192 - 14, 14), b"constant bytes");
    for address in [0, 8, u64::MAX - 3] {
        assert_eq!(job.copy(address, 100, 0), Err(CommandCode::AddressError), "{address:x}");
    }
    // One page. The page after it is not mapped.
    let last = job.session.address("block") + (1 << 20) - 4096;
    assert_eq!(job.copy(last + 4000, 1000, 0), Ok(96));
    let mut bytes = [0; 1000];
    let failure = job.tool.read_memory(0, last + 4000, &mut bytes, ANSWER_TIMEOUT);
    let code = CommandCode::AddressError.number();
    assert!(matches!(failure, Err(ReadMemoryError::Command(it)) if it == code), "{failure:?}");
    let failure = job.tool.view_memory(0, last + 4000, 97, ANSWER_TIMEOUT);
    assert!(matches!(failure, Err(ReadMemoryError::Command(it)) if it == code), "{failure:?}");
    let view = job.tool.view_memory(0, constant, 8, ANSWER_TIMEOUT).unwrap();
    assert!(view.iter().map(|byte| byte.load(Relaxed)).eq(*b"constant"));
    // The call has left no answer behind.
    job.tool.read_memory(0, constant, &mut bytes[..14], ANSWER_TIMEOUT).unwrap();
    assert_eq!(&bytes[..14], b"constant bytes");
    job.end();
}

#[test]
fn a_hostile_descriptor_is_refused_and_closed() {
    let Some(mut job) = Job::start("hostile") else { return };
    let (_, good) = SharedMemory::create(4096).unwrap();
    // Only an attached tool may share memory.
    assert_eq!(job.share(&[good.as_fd()]), Err((ReturnCode::ToolIdError, 0)));
    let body = Attach { tag: *b"the tool", priority: 1, select: ProcessSelect::RanksInNode };
    job.tool.ask(0, &ToolRequest::Attach(body), ANSWER_TIMEOUT).unwrap();
    let before = job.resources();
    let of_memory = |count| before.map(|(descriptors, _)| (descriptors, count));

    let failed = |errno: i32| Err((ReturnCode::RequestFailed, errno.cast_unsigned()));
    let sealed = |seals: SealFlag, len| {
        let file = memfd::create("score-test").unwrap();
        file.set_len(len).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        OwnedFd::from(file)
    };
    let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    for (fd, errno) in [
        (sealed(SealFlag::empty(), 4096), libc::EPERM),
        (sealed(SealFlag::F_SEAL_GROW, 4096), libc::EPERM),
        (sealed(size | SealFlag::F_SEAL_WRITE, 4096), libc::EPERM),
        (sealed(size, 0), libc::EFBIG),
        (sealed(size, u64::from(MAX_SHARED_LEN) + 1), libc::EFBIG),
        (File::open("/proc/self/exe").unwrap().into(), libc::EINVAL),
        (nix::unistd::dup(&job.tool).unwrap(), libc::EINVAL),
    ] {
        assert_eq!(job.share(&[fd.as_fd()]), failed(errno), "{fd:?}");
        assert_eq!(job.resources(), before, "{fd:?}");
    }
    // A write to the pipe fails if the service has closed its copy of the other end.
    for (count, errno) in [(1, libc::EINVAL), (2, libc::EBADMSG), (3, libc::EBADMSG)] {
        let (reading, writing) = nix::unistd::pipe().unwrap();
        assert_eq!(job.share(&vec![reading.as_fd(); count]), failed(errno), "{count}");
        drop(reading);
        let error = nix::unistd::write(&writing, b"x").unwrap_err();
        assert_eq!(error, Errno::EPIPE, "{count}");
    }
    for count in [0, 2, 3, 100] {
        assert_eq!(job.share(&vec![good.as_fd(); count]), failed(libc::EBADMSG), "{count}");
    }
    // Other messages are not carried out if they have a descriptor.
    let query = [Command { thread: 0, request: CommandRequest::GetThreadList(NoData {}) }];
    let detach = Detach { select: ProcessSelect::RanksInNode };
    for request in [ToolRequest::Query(&query), ToolRequest::Detach(detach), ToolRequest::NotifyAck]
    {
        for count in [1, 2] {
            let (code, error, _) = job.send(&request, &vec![good.as_fd(); count]);
            assert_eq!((code, error), (ReturnCode::RequestFailed, libc::EBADMSG as u32));
        }
    }
    // These messages are too long or cannot be decoded.
    for record in [vec![0xa5; 70_000], vec![5; 7]] {
        fd_passing::send(&job.tool, &record, &[good.as_fd(), good.as_fd()]).unwrap();
        assert!(!job.tool.receive_record(ANSWER_TIMEOUT).unwrap().is_empty());
    }
    assert_eq!(job.resources(), before);

    // Only the memory of the last message remains, and the service releases it with the connection.
    for _ in 0..5 {
        let (_, memfd) = SharedMemory::create(4096).unwrap();
        assert_eq!(job.share(&[memfd.as_fd()]), Ok(4096));
    }
    assert_eq!(job.resources(), of_memory(1));
    // A failed attempt does not change the memory, and holes in it read as zeroes.
    assert_eq!(job.share(&[]), failed(libc::EBADMSG));
    assert_eq!(job.share(&[good.as_fd()]), Ok(4096));
    let flags = nix::fcntl::FallocateFlags::FALLOC_FL_PUNCH_HOLE
        | nix::fcntl::FallocateFlags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(&good, flags, 0, 4096).unwrap();
    let constant = job.session.address("constant");
    assert_eq!(job.copy(constant, 14, 0), Ok(14));
    assert_eq!(job.resources(), of_memory(1));
    nix::sys::socket::shutdown(job.tool.as_fd().as_raw_fd(), nix::sys::socket::Shutdown::Both)
        .unwrap();
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let without_tool = before.map(|(descriptors, _)| (descriptors - 1, 0));
    while job.resources() != without_tool {
        assert!(Instant::now() < deadline, "the memory stays mapped");
        std::thread::sleep(Duration::from_millis(5));
    }
    job.end();
}
