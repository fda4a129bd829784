//! The opener: root's end.

use std::io;
use std::os::fd::OwnedFd;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt::SendTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike};
use score_pm::device::ethernet::wire::{Choice, Endpoint, Options};
use score_proto::frame;

use super::{Answer, Ask, Given, LONGEST, PATIENCE, Plan};
use crate::sys::namespace::{self, Rung};
use crate::sys::{process, prompt, rights};

/// What the process is called.
const NAME: &std::ffi::CStr = c"scored-opener";

/// What an opener is told on its command line.
#[derive(Debug)]
pub struct Opening {
    /// Socket to the shepherd; the plan lies in it already.
    pub control: OwnedFd,
}

/// Starts an opener; its process number, and the socket for the shepherd.
///
/// # Errors
/// What the system refused.
pub fn start(plan: &Plan) -> io::Result<(i32, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    // Before the shepherd has that end: nobody can say anything in front of it.
    rights::send(&theirs, &frame::encode_datagram(plan).map_err(io::Error::other)?, &[])?;
    let control = std::os::fd::AsRawFd::as_raw_fd(&ours).to_string();
    let words = ["scored", "-opener", "-control", &control];
    let words: Result<Vec<_>, _> = words.into_iter().map(std::ffi::CString::new).collect();
    // No namespace: it is this process's business, not the user's.
    let pid = prompt::anywhere(|| namespace::start_self(Rung::Subreaper, &words?, &[&ours]))?;
    Ok((pid, theirs))
}

/// Opens what is asked for until the shepherd has gone.
///
/// # Errors
/// What was said is no plan or no question.
pub fn run(opening: Opening) -> io::Result<()> {
    process::set_name(NAME);
    process::default_and_block_signals()?;
    process::die_with_parent(libc::SIGKILL);
    let socket = opening.control;
    // Its user may have stopped the shepherd.
    setsockopt(&socket, SendTimeout, &TimeVal::seconds(PATIENCE.as_secs() as i64))?;
    let (bytes, _) = rights::receive(&socket, LONGEST)?;
    let plan: Plan = frame::decode_datagram(&bytes).map_err(io::Error::other)?;
    let mut opened = vec![0; plan.sets.len()];
    loop {
        let (bytes, _) = rights::receive(&socket, LONGEST)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let ask: Ask = frame::decode_datagram(&bytes).map_err(io::Error::other)?;
        let endpoints = open(&plan, &mut opened, ask);
        let mut descriptors = Vec::new();
        let answer: Answer = endpoints.as_ref().map_err(String::clone).map(|endpoints| {
            descriptors.extend(endpoints.iter().flat_map(Endpoint::descriptors));
            endpoints.iter().map(given).collect()
        });
        let bytes = frame::encode_datagram(&answer).map_err(io::Error::other)?;
        rights::send(&socket, &bytes, &descriptors)?;
    }
}

fn given(endpoint: &Endpoint) -> Given {
    Given {
        description: endpoint.describe(),
        descriptors: endpoint.descriptors().count() as u8,
        note: endpoint.note().map(str::to_owned),
    }
}

fn open(plan: &Plan, opened: &mut [u32], ask: Ask) -> Result<Vec<Endpoint>, String> {
    let number = ask.set as usize;
    let set = plan.sets.get(number).filter(|(_, links)| !links.is_empty());
    let ((secret, links), opened) =
        set.zip(opened.get_mut(number)).ok_or("no network that scorehosts.db trusts")?;
    if *opened >= plan.most {
        return Err(format!("the job has raw sockets for its {} processes", plan.most));
    }
    *opened += 1;
    let choice = if ask.alone { Choice::Raw } else { Choice::Packet };
    let open = |link: &String| {
        let options = Options { secret: Some(*secret), ..Options::over(choice, link) };
        Endpoint::open(&options).map_err(|error| error.to_string())
    };
    links.iter().map(open).collect()
}
