//! The opener. It starts as root. Before it reads requests of the user's shepherd, it changes to
//! the user of the job, and keeps only the few capabilities that raw sockets need.

use std::io;
use std::os::fd::OwnedFd;

use score_pm::wire::{WireEndpoint, WireOptions, WirePreference};
use score_proto::frame;
use score_sys::{fd_passing, unix_socket};
use socket2::SockRef;

use super::{EndpointInfo, MAX_DATAGRAM_LEN, OPEN_TIMEOUT, OpenReply, OpenRequest, RawSocketGrant};
use crate::sys::credentials::UserIds;
use crate::sys::namespace::{self, Containment};
use crate::sys::{credentials, process, realtime};

/// The name of the process.
const PROCESS_NAME: &std::ffi::CStr = c"scored-opener";

/// The options of an opener.
#[derive(Debug)]
pub struct HelperOptions {
    /// The socket to the shepherd. The grant is already queued in it.
    pub control: OwnedFd,
}

/// Starts an opener for a job of the user with these ids (uid and gid). Returns its process id, and
/// the socket for the shepherd.
///
/// # Errors
/// The system call that failed.
pub fn start(plan: &RawSocketGrant, owner: UserIds) -> io::Result<(i32, OwnedFd)> {
    let (ours, theirs) = unix_socket::seqpacket_pair()?;
    // Sent before the shepherd has its end, so that no other message can precede it.
    let start = frame::encode_datagram(&(owner, plan)).map_err(io::Error::other)?;
    fd_passing::send(&theirs, &start, &[])?;
    let control = std::os::fd::AsRawFd::as_raw_fd(&ours).to_string();
    let arguments = ["scored", "-opener", "-control", &control];
    let arguments: Result<Vec<_>, _> = arguments.into_iter().map(std::ffi::CString::new).collect();
    // Without a namespace, because this process belongs to the daemon and not to the user.
    let pid = realtime::run_unpinned(|| {
        namespace::start_self(Containment::Subreaper, &arguments?, &[&ours], None)
    })?;
    Ok((pid, theirs))
}

/// Opens the requested sockets until the shepherd has exited.
///
/// # Errors
/// A message was neither the grant nor a request, or a system call failed.
pub fn run(options: HelperOptions) -> io::Result<()> {
    process::set_name(PROCESS_NAME);
    process::default_and_block_signals()?;
    let socket = options.control;
    // The user may have stopped the shepherd.
    SockRef::from(&socket).set_write_timeout(Some(OPEN_TIMEOUT))?;
    let (bytes, _) = fd_passing::receive(&socket, MAX_DATAGRAM_LEN, 0)?;
    let (owner, plan): (UserIds, RawSocketGrant) =
        frame::decode_datagram(&bytes).map_err(io::Error::other)?;
    credentials::become_raw_socket_opener(owner).map_err(io::Error::other)?;
    // The kernel clears the parent-death signal when ids change.
    process::die_with_parent(libc::SIGKILL);
    let mut open_counts = vec![0; plan.sets.len()];
    loop {
        let (bytes, _) = fd_passing::receive(&socket, MAX_DATAGRAM_LEN, 0)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let request: OpenRequest = frame::decode_datagram(&bytes).map_err(io::Error::other)?;
        let endpoints = open(&plan, &mut open_counts, request);
        let mut descriptors = Vec::new();
        let reply: OpenReply = endpoints.as_ref().map_err(String::clone).map(|endpoints| {
            descriptors.extend(endpoints.iter().flat_map(WireEndpoint::descriptors));
            endpoints.iter().map(endpoint_info).collect()
        });
        let bytes = frame::encode_datagram(&reply).map_err(io::Error::other)?;
        fd_passing::send(&socket, &bytes, &descriptors)?;
    }
}

fn endpoint_info(endpoint: &WireEndpoint) -> EndpointInfo {
    EndpointInfo {
        description: endpoint.describe(),
        descriptors: endpoint.descriptors().count() as u8,
        note: endpoint.note().map(str::to_owned),
    }
}

fn open(
    plan: &RawSocketGrant,
    open_counts: &mut [u32],
    request: OpenRequest,
) -> Result<Vec<WireEndpoint>, String> {
    let set_index = request.set as usize;
    let set = plan.sets.get(set_index).filter(|(_, links)| !links.is_empty());
    let ((secret, links), open_count) =
        set.zip(open_counts.get_mut(set_index)).ok_or("no network that scorehosts.db trusts")?;
    if *open_count >= plan.max_processes {
        return Err(format!(
            "the job already has raw sockets for its {} processes",
            plan.max_processes
        ));
    }
    *open_count += 1;
    let choice = if request.use_xdp { WirePreference::Raw } else { WirePreference::Packet };
    let open = |link: &String| {
        let options =
            WireOptions { secret: Some(*secret), ..WireOptions::on_interface(choice, link) };
        WireEndpoint::open(&options).map_err(|error| error.to_string())
    };
    links.iter().map(open).collect()
}
