//! `scored-pmix`: the PMIx server for the processes of a job on one host, which the programs of
//! Open MPI need to find each other. The shepherd of a job with such programs starts it as the
//! job's user and in the job's PID namespace. It is a separate process because libpmix has threads
//! and an event loop. The shepherd, which is init of the namespace, remains simple.
//!
//! | file | contents |
//! |---|---|
//! | `server.rs` | calls of libpmix |
//! | `callbacks.rs` | callbacks from libpmix |
//! | `callers.rs` | answers to calls that wait for other hosts |
//! | `server/deadlines.rs` | time limits of calls |
//! | `server/direct_modex.rs` | requests for the data of one rank of another host |
//! | `log.rs` | the text that processes log |
//! | `namespace.rs` | the fences of a namespace, without libpmix |
//! | `facts.rs` | the information about their job that ranks can query |
//! | `keys.rs` | the keys of this information |
//! | `info_list.rs` | this information in the form that libpmix needs |
//! | `library.rs` | the functions of the loaded libpmix |
//! | `abi.rs` | declarations of libpmix |

// UNSAFETY: libpmix is a C library.
#![expect(unsafe_code)]

mod abi;
mod callbacks;
mod callers;
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
    /// The next order. Returns None when the shepherd has closed its end of the socket.
    fn next(&mut self) -> io::Result<Option<PmixOrder>> {
        self.decoder.read_next(&mut self.socket)
    }
}

fn start(setup: &PmixSetup, socket: &UnixStream) -> Result<&'static Server, String> {
    let library = setup.library.as_ref().map(|path| path.0.as_slice());
    let functions = Functions::load(library)?;
    let socket = socket.try_clone().map_err(|error| error.to_string())?;
    Server::start(functions, callbacks::MODULE, socket, setup)
}

fn serve(mut orders: Orders) -> io::Result<()> {
    let Some(PmixOrder::Setup(setup)) = orders.next()? else {
        return Err(io::Error::other("only scored can start this program"));
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

/// The usage text, for a user who starts the program.
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
    // SAFETY: the shepherd passes this descriptor, and nothing else in this process uses it. If
    // another process has started the program, reading fails.
    let socket = unsafe { UnixStream::from_raw_fd(PMIX_SOCKET_FD) };
    let result = serve(Orders { socket, decoder: Decoder::default() });
    if let Err(error) = &result {
        eprintln!("scored-pmix: {error}");
    }
    // SAFETY: the call only ends the process. It does not run the destructors of libpmix, whose
    // thread may be in a callback.
    unsafe { libc::_exit(i32::from(result.is_err())) }
}
