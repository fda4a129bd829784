//! Starts the processes of the programs of a job. Other modules start helpers and tools.
//!
//! The shepherd keeps itself in the state that a child must inherit, so that there is little work
//! for each process. All of its descriptors are close-on-exec, all signals have their default
//! action, its umask is that of the job, and its priority and oom_score_adj are unchanged.
//!
//! [`super::clone_exec`] contains the code that a child runs before its program. An error in that
//! code is known only after the child has exited.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use super::clone_exec::{PreExecChild, STEP_DIRECTORY, STEP_EXEC, STEP_OPEN_FILE};
use super::spawn_args::SpawnArgs;

/// Why a process could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnError {
    /// No process could be created: errno.
    Process(i32),
    /// The working directory cannot be entered: errno.
    Directory(i32),
    /// The program cannot be executed: errno.
    Program(i32),
    /// A file cannot be opened: descriptor number, index of the path, errno.
    File(usize, usize, i32),
    /// Another step in the child failed: errno.
    Setup(i32),
}

/// Starts processes. Keeps the errors of processes that could not run their program.
#[derive(Debug, Default)]
pub struct Spawner {
    /// Children that may still use this process's memory, by index.
    pre_exec_children: VecDeque<(usize, Rc<PreExecChild>)>,
    /// A released child, for reuse.
    spare: Option<Rc<PreExecChild>>,
    /// Failed step and errno, by index.
    errors: HashMap<usize, (u64, i32)>,
}

impl Spawner {
    /// Prepares for the processes of another stage. Drops the state of all earlier processes.
    pub fn reset(&mut self) {
        self.collect_exited();
        // These children may still use their objects, so that the memory must not be freed.
        self.pre_exec_children.drain(..).for_each(std::mem::forget);
        self.errors.clear();
    }

    /// Starts process `index` in its own session and returns its process id. All signals must be
    /// blocked in the caller.
    ///
    /// # Errors
    /// [`SpawnError::Process`]. [`Spawner::error_of`] returns later errors.
    pub fn spawn(&mut self, args: &SpawnArgs<'_>, index: usize) -> Result<i32, SpawnError> {
        self.collect_exited();
        let (pid, child) =
            PreExecChild::new(args, self.spare.take()).map_err(SpawnError::Process)?;
        self.pre_exec_children.push_back((index, child));
        Ok(pid)
    }

    /// Collects the errors and the memory of released children.
    fn collect_exited(&mut self) {
        for _ in 0..self.pre_exec_children.len() {
            let Some((index, child)) = self.pre_exec_children.pop_front() else { return };
            if !child.is_released() {
                self.pre_exec_children.push_back((index, child));
                continue;
            }
            if let Some(error) = child.error() {
                self.errors.insert(index, error);
            }
            self.spare = Some(child);
        }
    }

    /// The indexes of processes that have neither executed their program nor exited.
    pub fn pre_exec_indexes(&mut self) -> HashSet<usize> {
        self.collect_exited();
        self.pre_exec_children.iter().map(|(index, _)| *index).collect()
    }

    /// The error in the start of a process that has exited, if any.
    pub fn error_of(&mut self, index: usize) -> Option<SpawnError> {
        self.collect_exited();
        let &(step, errno) = self.errors.get(&index)?;
        Some(match step {
            STEP_DIRECTORY => SpawnError::Directory(errno),
            STEP_EXEC => SpawnError::Program(errno),
            STEP_OPEN_FILE.. => {
                let file_step = (step - STEP_OPEN_FILE) as usize;
                SpawnError::File(file_step % 4, file_step / 4, errno)
            }
            _ => SpawnError::Setup(errno),
        })
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::super::spawn_args::{ChildFile, FdSource, PMI_FD, Program};
    use super::*;
    use crate::sys::process;
    use crate::sys::process_stop::{self, StopResult};
    use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
    use score_proto::job_control::Status;
    use std::ffi::{CStr, CString};
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd};

    /// A file whose descriptor number is above those that a process gets.
    fn high_fd() -> File {
        let open = || File::options().read(true).write(true).open("/dev/null").unwrap();
        let files: Vec<File> = (0..=PMI_FD + 1).map(|_| open()).collect();
        files.into_iter().max_by_key(AsRawFd::as_raw_fd).unwrap()
    }

    #[test]
    fn a_held_process_stops_with_its_program_loaded_and_runs_after_sigcont() {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).unwrap();
        let null = high_fd();
        let source = FdSource::Fd(null.as_fd());
        let words = |words: &[&CStr]| words.iter().map(|&word| word.into()).collect();
        // Without descriptors to spare.
        let limit = libc::rlimit { rlim_cur: 5, rlim_max: 5 };
        let program = Program::new(words(&[c"/nowhere", c"/bin/sh"]), words(&[c"sh", c"-c", c":"]));
        let mut spawner = Spawner::default();
        for _ in 0..20 {
            let args = SpawnArgs {
                program: &program,
                environment: &[],
                directory: c"/",
                descriptors: [source; 4],
                pmi_socket: None,
                descriptor_limit: limit,
                die_with_parent: true,
                cpu_set: None,
                hold: true,
            };
            spawner.reset();
            let pid = spawner.spawn(&args, 7).unwrap();
            assert_eq!(process_stop::wait_for_stop(pid), StopResult::Stopped);
            assert!(spawner.pre_exec_indexes().is_empty());
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
            assert_eq!(program, std::fs::canonicalize("/bin/sh").unwrap());
            // The first of nine numbers is that of the system call. The process is still in execve.
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
            assert!(call.starts_with(&format!("{} ", libc::SYS_execve)), "{call}");
            process::kill(pid, libc::SIGCONT);
            assert_eq!(process::wait_for(pid).unwrap().status, Status::Exited(0));
            assert_eq!(spawner.error_of(7), None);
        }
    }

    #[test]
    fn concurrent_spawns_each_report_their_own_error_and_their_memory_is_reused() {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).unwrap();
        let null = high_fd();
        let words = |words: &[&std::ffi::CStr]| words.iter().map(|&word| word.into()).collect();
        let program = |candidates: &[&std::ffi::CStr]| {
            Program::new(words(candidates), words(&[c"sh", c"-c", c"exit $CODE"]))
        };
        let (sh, missing_program) =
            (program(&[c"/nowhere/sh", c"/bin/sh"]), program(&[c"/nowhere/sh"]));
        let missing = ChildFile { paths: words(&[c"/nowhere/1", c"/nowhere/2"]), flags: 0 };
        let mut spawner = Spawner::default();
        for round in 0..2 {
            spawner.reset();
            let mut pids = Vec::new();
            for index in 0..60_usize {
                let code = CString::new(format!("CODE={index}")).unwrap();
                let null_source = FdSource::Fd(null.as_fd());
                let args = SpawnArgs {
                    program: if index % 4 == 1 { &missing_program } else { &sh },
                    environment: &[&code],
                    directory: if index % 4 == 2 { c"/nowhere" } else { c"/" },
                    descriptors: [
                        if index % 4 == 3 { FdSource::File(&missing) } else { null_source },
                        null_source,
                        null_source,
                        null_source,
                    ],
                    pmi_socket: None,
                    descriptor_limit: libc::rlimit { rlim_cur: 100, rlim_max: 100 },
                    die_with_parent: true,
                    cpu_set: None,
                    hold: false,
                };
                pids.push(spawner.spawn(&args, index).unwrap());
            }
            for (index, pid) in pids.into_iter().enumerate() {
                let status = process::wait_for(pid).unwrap().status;
                let (error, code) = match index % 4 {
                    1 => (Some(SpawnError::Program(libc::ENOENT)), 127),
                    2 => (Some(SpawnError::Directory(libc::ENOENT)), 127),
                    3 => (Some(SpawnError::File(0, 1, libc::ENOENT)), 127),
                    _ => (None, index as u8),
                };
                assert_eq!((spawner.error_of(index), status), (error, Status::Exited(code)));
            }
            assert!(spawner.pre_exec_children.is_empty(), "round {round}");
        }
    }
}
