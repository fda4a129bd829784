//! `scored-pmix`: serves PMIx to the processes of a job on one host, so that programs of Open MPI
//! find each other. A shepherd starts it for jobs that have such programs, as the job's user and in
//! the job's PID namespace. It is a process of its own because libpmix has threads and an event
//! loop, and the shepherd, which is init of the namespace, stays simple.
//!
//! | file | what |
//! |---|---|
//! | `server.rs` | calls of libpmix |
//! | `callbacks.rs` | its calls back |
//! | `callers.rs` | how calls that wait for other hosts are answered |
//! | `deadlines.rs` | how long calls may wait |
//! | `direct_modex.rs` | what one rank has put, for a rank of another host |
//! | `log.rs` | what processes log |
//! | `namespace.rs` | the fences of a namespace, without libpmix |
//! | `facts.rs` | what ranks may ask about their job |
//! | `keys.rs` | their keys |
//! | `info_list.rs` | facts in the form that libpmix wants |
//! | `library.rs` | the functions of the libpmix that is loaded |
//! | `abi.rs` | declarations of libpmix |

// UNSAFETY: libpmix is a C library.
#![expect(unsafe_code)]

mod abi;
mod callbacks;
mod callers;
mod deadlines;
mod direct_modex;
mod facts;
mod info_list;
mod keys;
mod library;
mod log;
mod namespace;
mod server;

use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;

use library::Functions;
use score_proto::frame::{self, Decoder};
use score_proto::pmix::{PMIX_SOCKET_FD, PmixOrder, PmixReport, PmixSetup};
use server::Server;

/// The orders of the shepherd.
struct Orders {
    socket: UnixStream,
    decoder: Decoder,
}

impl Orders {
    /// The next order. None when the shepherd has closed its end.
    fn next(&mut self) -> io::Result<Option<PmixOrder>> {
        self.decoder.read_next(&mut self.socket)
    }
}

fn start(setup: &PmixSetup, socket: &UnixStream) -> Result<&'static Server, String> {
    let library = setup.library.as_ref().map(|path| path.0.as_slice());
    let functions = Functions::load(library)?;
    let socket = socket.try_clone().map_err(|error| error.to_string())?;
    Server::start(functions, socket, setup)
}

fn serve(mut orders: Orders) -> io::Result<()> {
    let Some(PmixOrder::Setup(setup)) = orders.next()? else {
        return Err(io::Error::other("this program is started by scored only"));
    };
    let server = match start(&setup, &orders.socket) {
        Ok(server) => server,
        Err(reason) => {
            let mut bytes = Vec::new();
            frame::encode(&PmixReport::Unavailable(reason), &mut bytes)
                .map_err(io::Error::other)?;
            return orders.socket.write_all(&bytes);
        }
    };
    while let Some(order) = orders.next()? {
        match order {
            PmixOrder::Setup(_) => {}
            PmixOrder::FenceEntries { element, fence, entries } => {
                server.add_entries(element, fence, &entries);
            }
            PmixOrder::FenceDone { element, fence } => server.end_fence(element, fence),
            PmixOrder::ModexRequest { element, rank, is_last_try } => {
                server.find_entries(element, rank, is_last_try);
            }
            PmixOrder::ModexAnswer { element, rank, entries } => {
                server.answer_request(element, rank, entries);
            }
            PmixOrder::ReportAlive => server.report_alive(),
        }
    }
    Ok(())
}

/// What a user who starts it reads.
const USAGE: &str = "\
scored-pmix serves PMIx to the programs of Open MPI in a job. scored starts it; see scored-pmix(8).
";

fn main() {
    if let Some(argument) = std::env::args_os().nth(1) {
        match argument == "-help" {
            true => print!("{USAGE}"),
            false => eprint!("{USAGE}"),
        }
        std::process::exit(if argument == "-help" { 0 } else { 2 });
    }
    // SAFETY: the shepherd passes this descriptor, and nothing else of this process uses it. If
    // somebody else has started the program, reading fails.
    let socket = unsafe { UnixStream::from_raw_fd(PMIX_SOCKET_FD) };
    let result = serve(Orders { socket, decoder: Decoder::default() });
    if let Err(error) = &result {
        eprintln!("scored-pmix: {error}");
    }
    // Without the destructors of libpmix, whose thread may be in a call back.
    // SAFETY: the call only ends the process.
    unsafe { libc::_exit(i32::from(result.is_err())) }
}
