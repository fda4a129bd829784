//! The role on a compute host: this module attaches to the objects that the shepherd has prepared
//! (manual 2.1; docs/dev/job-control.md, "The path of a job", step 5).

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use memmap2::{MmapOptions, MmapRaw};
use nix::sys::socket::{SockType, getsockopt, sockopt};
use score_proto::carea::{AREA_LEN, BOARD_LEN, BOARD_MAGIC, board};
use score_proto::message::{Call, Reply, Welcome};
use score_proto::{MAX_NODES, PROTOCOL_VERSION, frame};
use score_sys::fd_passing;
use score_sys::memfd::{self, Seals};

use crate::area::{Area, ShepherdNotifier};
use crate::control::Control;
use crate::fork_guard::ForkGuard;
use crate::globals::{self, ProcessLocation};
use crate::options::Options;
use crate::pm;
use crate::session::{self, Session};
use crate::sync::{Ordering, SharedMapping};
use crate::{detach, elf_note, exit, idle, networks};

/// Attaches to the shepherd. Returns after all nodes of the parallel process have called
/// score_initialize.
///
/// # Errors
/// Returns one line that names the problem.
pub(crate) fn attach(socket: OwnedFd) -> Result<(), String> {
    let kind = getsockopt(&socket, sockopt::SockType);
    if kind != Ok(SockType::SeqPacket) {
        return Err(format!("SCORE_CONTROL_FD is not SCore-D's socket ({kind:?})"));
    }
    let fork_guard = ForkGuard::new().map_err(|e| format!("MADV_WIPEONFORK: {e}"))?;
    let control = Control::new(socket);
    let call = Call::Attach { version: elf_note::version() };
    control.send(&frame::encode_datagram(&call).map_err(|e| e.to_string())?);
    let (reply, descriptors) = receive(control.socket())?;
    let welcome = match reply {
        Reply::Welcome(welcome) => *welcome,
        Reply::Refused(reason) => return Err(reason),
        Reply::Done { .. } => return Err("SCore-D sent an unexpected answer".to_owned()),
    };
    check(&welcome, descriptors.len())?;
    let board = map_board(&descriptors[0])?;
    let area = map_area(
        &descriptors[1],
        welcome.area,
        ShepherdNotifier::new(&welcome.notify_socket_name)?,
    )?;
    let network_sets = networks::join(&welcome, &descriptors[2..])?;
    let mut contexts: Vec<_> = network_sets.iter().map(|net| net.composite.as_ptr()).collect();
    contexts.push(std::ptr::null_mut());
    let session = Session {
        fork_guard,
        control,
        area,
        options: Options::new(welcome.options)?,
        job: i32::try_from(welcome.job.0).map_err(|_| "the job's number is too large")?,
        dir: PathBuf::from(welcome.dir),
        oversubscribed: board.u32(board::FLAGS).load(Ordering::Relaxed) & board::OVERSUBSCRIBED
            != 0,
        board,
        networks: network_sets,
    };
    let location = ProcessLocation {
        node: (welcome.self_node, welcome.num_node),
        proc: (welcome.self_proc.0, welcome.num_proc),
        host: (welcome.self_host.0, welcome.num_host),
    };
    globals::publish(&location, Vec::leak(contexts));
    start_session(session)
}

/// Makes the process a node.
fn start_session(session: Session) -> Result<(), String> {
    let session = session::set(session).ok_or("the process is already initialized")?;
    // The initializing thread counts as busy until it declares itself idle.
    idle::become_busy();
    pm::set_idle_word(session.area.idle_threads(), idle::on_idle_send)
        .map_err(|e| format!("cannot set PM's idle word: {e}"))?;
    session.area.publish(PROTOCOL_VERSION);
    exit::register(detach::detach);
    score_faults::install(session.control.socket().as_raw_fd());
    Ok(())
}

/// Receives the first reply and the descriptors that come with it.
fn receive(socket: &OwnedFd) -> Result<(Reply, Vec<OwnedFd>), String> {
    let max_fds = networks::MAX_MEMBERS + 2;
    let received = fd_passing::receive(socket, frame::MAX_BODY, max_fds);
    let (bytes, descriptors) = received.map_err(|e| match e.raw_os_error() {
        Some(libc::EMSGSIZE) => {
            "SCore-D's answer is too long, or this process has no free descriptor for it".to_owned()
        }
        _ => format!("SCore-D does not answer: {e}"),
    })?;
    if bytes.is_empty() {
        return Err("SCore-D has ended the parallel process before it began".to_owned());
    }
    let reply = frame::decode_datagram(&bytes)
        .map_err(|e| format!("SCore-D's answer: {e}; it belongs to another version of SCore"))?;
    Ok((reply, descriptors))
}

/// Checks that the numbers are consistent.
fn check(welcome: &Welcome, descriptor_count: usize) -> Result<(), String> {
    let pairs = [
        ("node", welcome.self_node, welcome.num_node),
        ("proc", welcome.self_proc.0, welcome.num_proc),
        ("host", welcome.self_host.0, welcome.num_host),
    ];
    for (name, index, count) in pairs {
        if index >= count || count > MAX_NODES {
            return Err(format!("SCore-D sent an impossible {name}: {index} of {count}"));
        }
    }
    if welcome.num_proc > welcome.num_node || welcome.num_host > welcome.num_node {
        return Err(format!(
            "SCore-D reports {} processes on this host and {} hosts for {} nodes",
            welcome.num_proc, welcome.num_host, welcome.num_node
        ));
    }
    let member_count = networks::check_networks(welcome)?;
    if descriptor_count != member_count + 2 {
        return Err(format!(
            "SCore-D sent {descriptor_count} descriptors instead of {}",
            member_count + 2
        ));
    }
    if !welcome.dir.starts_with('/') || welcome.dir.contains('\0') {
        return Err(format!("the job's directory {:?} is not an absolute path", welcome.dir));
    }
    Ok(())
}

/// Checks that an object has at least `len` bytes and cannot shrink. Access to a truncated object
/// would raise SIGBUS.
fn check_object(name: &str, fd: &OwnedFd, len: usize) -> Result<(), String> {
    match memfd::sealed_len(fd, Seals::Size).map_err(|e| format!("{name}: {e}"))? {
        None => Err(format!("{name} is not sealed against resizing")),
        Some(size) if size < len as u64 => Err(format!("{name} has {size} bytes instead of {len}")),
        Some(_) => Ok(()),
    }
}

fn map_board(fd: &OwnedFd) -> Result<SharedMapping, String> {
    check_object("the board", fd, BOARD_LEN)?;
    let mapping = MmapOptions::new().len(BOARD_LEN).map_raw_read_only(fd);
    let board = SharedMapping::new(mapping.map_err(|e| format!("cannot map the board: {e}"))?);
    let version = board.u32(board::VERSION).load(Ordering::Relaxed);
    if board.u64(board::MAGIC).load(Ordering::Relaxed) != BOARD_MAGIC {
        return Err("the board has no valid header".to_owned());
    }
    if version != PROTOCOL_VERSION {
        return Err(format!(
            "SCore-D uses protocol {version}, this program's libscore {PROTOCOL_VERSION}; \
             link the program again, or use the scrun of its libscore"
        ));
    }
    Ok(board)
}

fn map_area(fd: &OwnedFd, index: u32, notifier: ShepherdNotifier) -> Result<Area, String> {
    let end = (u64::from(index) + 1) * AREA_LEN as u64;
    let len = usize::try_from(end).map_err(|_| "the C-Area is too large".to_owned())?;
    check_object("the C-Area", fd, len)?;
    let start = end - AREA_LEN as u64;
    let mapping: std::io::Result<MmapRaw> =
        MmapOptions::new().offset(start).len(AREA_LEN).map_raw(fd);
    Ok(Area::new(mapping.map_err(|e| format!("cannot map the C-Area: {e}"))?, notifier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::{JobHostId, JobId, ProcessIndex};
    use score_proto::message::NetworkSet;

    fn welcome() -> Welcome {
        Welcome {
            job: JobId(1),
            area: 1,
            self_node: 1,
            num_node: 4,
            self_proc: ProcessIndex(1),
            num_proc: 4,
            self_host: JobHostId(0),
            num_host: 1,
            networks: vec![NetworkSet::one_host(4)],
            options: Vec::new(),
            dir: "/tmp".to_owned(),
            notify_socket_name: Vec::new(),
        }
    }

    fn map(fd: &OwnedFd, number: u32) -> Result<Area, String> {
        map_area(fd, number, ShepherdNotifier::new(b"notify").unwrap())
    }

    #[test]
    fn a_sensible_welcome_passes() {
        assert_eq!(check(&welcome(), 3), Ok(()));
        let alone = Welcome {
            self_node: 0,
            num_node: 1,
            self_proc: ProcessIndex(0),
            num_proc: 1,
            networks: Vec::new(),
            ..welcome()
        };
        assert_eq!(check(&alone, 2), Ok(()));
    }

    #[test]
    fn an_inconsistent_welcome_is_refused_with_the_wrong_number() {
        let faulty = [
            (Welcome { self_node: 4, ..welcome() }, 3, "node: 4 of 4"),
            (Welcome { num_node: 0, ..welcome() }, 3, "node: 1 of 0"),
            (Welcome { num_node: MAX_NODES + 1, ..welcome() }, 3, "node: 1 of"),
            (Welcome { self_proc: ProcessIndex(9), ..welcome() }, 3, "proc: 9 of 4"),
            (Welcome { self_host: JobHostId(1), ..welcome() }, 3, "host: 1 of 1"),
            (Welcome { num_proc: 5, ..welcome() }, 3, "5 processes"),
            (Welcome { networks: Vec::new(), ..welcome() }, 2, "0 network sets"),
            (welcome(), 2, "2 descriptors"),
            (Welcome { dir: "tmp".to_owned(), ..welcome() }, 3, "directory"),
        ];
        for (welcome, descriptors, word) in faulty {
            let line = check(&welcome, descriptors).unwrap_err();
            assert!(line.contains(word), "{line}");
        }
    }

    #[test]
    fn an_area_beyond_its_object_is_refused() {
        let unsealed = OwnedFd::from(memfd::create("score-test").unwrap());
        assert!(map(&unsealed, 1).err().unwrap().contains("sealed"));
        let object = memfd::create_sealed("score-test", 2 * AREA_LEN as u64).unwrap();
        assert!(map(&object, 1).is_ok());
        assert!(map(&object, 2).err().unwrap().contains("bytes"));
        assert!(map(&object, u32::MAX).is_err());
    }
}
