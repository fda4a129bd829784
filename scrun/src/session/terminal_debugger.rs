//! A debugger on scrun's terminal. While the debugger runs it is in the foreground: only the
//! debugger gets the user's input and `^C`. It ends with scrun, even if scrun is killed.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs;
use std::io::stdin;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::Waker;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use score_proto::ids::ElementIndex;
use score_proto::server_message::TerminalDebugger as Request;

/// First argument of scrun if the process is to become the debugger.
pub const ROLE: &str = "--become-debugger";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A running debugger.
pub struct TerminalDebugger {
    /// The parallel process and the node that the debugger debugs.
    pub node: (ElementIndex, u32),
    pid: Pid,
    has_ended: Arc<AtomicBool>,
    settings: Option<Termios>,
}

impl TerminalDebugger {
    /// Starts gdb on a process of this host. Returns `None` if the process is on another host, or
    /// if scrun is not in the foreground of a terminal.
    pub fn start(request: &Request, waker: Arc<Waker>) -> Option<Self> {
        let boot_id = fs::read_to_string(BOOT_ID).ok()?;
        let is_here = boot_id.trim() == request.process.boot_id;
        let is_in_foreground = tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp());
        if !is_here || !is_in_foreground {
            return None;
        }
        let settings = tcgetattr(stdin()).ok();
        let process = request.process.pid.to_string();
        let mut command = Command::new("/proc/self/exe");
        command.args([ROLE, &std::process::id().to_string(), &process]).process_group(0);
        let mut child = command.spawn().ok()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).ok()?);
        let has_ended = Arc::new(AtomicBool::new(false));
        let its_end = Arc::clone(&has_ended);
        std::thread::spawn(move || {
            let _ = child.wait();
            its_end.store(true, Ordering::Release);
            let _ = waker.wake();
        });
        Some(Self { node: (request.element, request.node), pid, has_ended, settings })
    }

    /// Whether the debugger has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Drop for TerminalDebugger {
    /// Ends the debugger, and puts scrun into the foreground of the terminal.
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
        // Without this, SIGTTOU would stop a process in the background.
        let _ = SigSet::from(Signal::SIGTTOU).thread_block();
        let _ = tcsetpgrp(stdin(), getpgrp());
        if let Some(settings) = &self.settings {
            let _ = tcsetattr(stdin(), SetArg::TCSADRAIN, settings);
        }
    }
}

/// Makes this process, which [`TerminalDebugger::start`] has started, become gdb. `words` are the
/// arguments after [`ROLE`].
///
/// # Errors
/// One line with the reason.
pub fn become_debugger(words: &[OsString]) -> Result<Infallible, String> {
    let [scrun, process] = words else { return Err(format!("{ROLE}: only scrun can start this")) };
    set_pdeathsig(Signal::SIGKILL).map_err(|error| error.to_string())?;
    if scrun.to_str() != Some(&parent_id().to_string()) {
        return Err("scrun has ended".to_owned());
    }
    // Without this, SIGTTOU would stop a process in the background. SIGTSTP stays blocked, because
    // nothing would continue a debugger after ^Z.
    let mut blocked = SigSet::from(Signal::SIGTTOU);
    let set = |mask: &SigSet| mask.thread_swap_mask(SigmaskHow::SIG_SETMASK);
    set(&blocked).map_err(|error| error.to_string())?;
    tcsetpgrp(stdin(), getpgrp()).map_err(|error| format!("the terminal: {error}"))?;
    blocked = SigSet::from(Signal::SIGTSTP);
    set(&blocked).map_err(|error| error.to_string())?;
    let error = Command::new("gdb").args(["-q", "-p"]).arg(process).exec();
    Err(format!("gdb: {error}; install it, or use -debug with DISPLAY"))
}
