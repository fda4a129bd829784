//! The attacks of the hostile user. Each continues until its process is killed.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getuid};
use score_benches::client::{
    READ_TIMEOUT, encode, job_of_stages, log_in, receive_answer, system_program, write_bytes,
};
use score_client::{Connection, Received};
use score_proto::allocation_request::AllocationRequest;
use score_proto::client_session::JobMessage;
use score_proto::ids::SessionJobId;
use score_proto::message::{
    ElementSpec, FileDigest, JobRequest, JobSpec, JobTerms, MAX_IO_CHUNK, UserRequest,
};
use score_proto::server_message::JobAnswer;

use crate::job_list::list_jobs;
use crate::sessions::allow_many_descriptors;
use crate::testbed::{HOSTILE_UID, HOSTS, Role, Services, socket_of};
use crate::{BenchResult, use_processors};

/// Time limit of an attack.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a flood waits until its socket accepts more bytes.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);

/// The number of a session's job.
const JOB: SessionJobId = SessionJobId(1);
/// The number of logins that flood each host.
const FLOODS: u32 = 2;
/// The number of connections to each host that do not log in.
const SILENT_CONNECTIONS: usize = 3000;
/// The number of logins on each host with an unfinished message, and the bytes of that message.
const UNFINISHED_FRAMES: usize = 300;
const UNFINISHED_FRAME_LEN: usize = 1_000_000;
/// The number of logins on each host that send single bytes.
const TRICKLING_LOGINS: usize = 32;
/// The number of programs in a large request, and the bytes of each program's argument.
const ELEMENTS: usize = 1024;
const ELEMENT_ARGUMENT_LEN: usize = 900;
/// The number of threads for each host that log in repeatedly.
const LOGIN_THREADS: u32 = 4;
/// The number of files that remain after the shepherd is killed.
const LEFT_FILES: u32 = 20_000;
const STOP_INTERVAL: Duration = Duration::from_millis(1);
const LARGE_PROGRAM_LEN: u64 = 256 << 20;

/// The attacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attack {
    /// The user only computes. This shows how much computing disturbs the measurement.
    Computing,
    /// A flood of small messages on 4 sessions.
    Messages,
    /// A flood of signals to all hosts of two jobs.
    Signals,
    /// 3,000 connections to each host that never log in.
    Connections,
    /// Connections on two threads, which do not wait for a place in the queue and close each
    /// connection at once.
    Reconnects,
    /// 600 logins, each with an unfinished frame of almost 1 MiB.
    Frames,
    /// Single bytes of unfinished messages, on 32 logins to each host.
    Bytes,
    /// Repeated requests with 1,024 programs.
    Elements,
    /// Repeated logins that request the list of jobs, on 8 threads.
    Logins,
    /// Jobs with 20,000 files, whose shepherds are killed.
    Leftovers,
    /// A job whose shepherd is stopped repeatedly.
    Stops,
    /// A program of 256 MiB that is sent to another host.
    Program,
}

const ATTACKS: [(&str, Attack); 12] = [
    ("computing", Attack::Computing),
    ("messages", Attack::Messages),
    ("signals", Attack::Signals),
    ("connections", Attack::Connections),
    ("reconnects", Attack::Reconnects),
    ("frames", Attack::Frames),
    ("bytes", Attack::Bytes),
    ("elements", Attack::Elements),
    ("logins", Attack::Logins),
    ("leftovers", Attack::Leftovers),
    ("stops", Attack::Stops),
    ("program", Attack::Program),
];

impl Attack {
    /// Returns the attack of this name, or `None` for `none`.
    pub fn parse(word: &str) -> BenchResult<Option<Self>> {
        if word == "none" {
            return Ok(None);
        }
        let found = ATTACKS.iter().find(|(name, _)| *name == word).map(|(_, attack)| *attack);
        let names = || ATTACKS.map(|(name, _)| name).join(", ");
        found.map(Some).ok_or_else(|| format!("{word}: unknown attack (valid: none, {})", names()))
    }

    pub fn name(self) -> &'static str {
        ATTACKS.iter().find(|(_, attack)| *attack == self).map_or("", |(name, _)| name)
    }

    /// Returns the number of jobs of this attack that compute on the shared processor.
    pub fn busy_jobs(self) -> u32 {
        u32::from(self == Self::Stops)
    }
}

/// Starts an attack, and waits until it has begun.
pub fn start(services: &Services, attack: Attack) -> BenchResult<Role> {
    let testbed = &services.attacked;
    let (folder, processor) =
        (testbed.folder.to_string_lossy(), services.processors[1].to_string());
    let mut role =
        testbed.start_role(HOSTILE_UID, &["attack", attack.name(), &processor, &folder])?;
    role.next_line()?;
    Ok(role)
}

/// Runs an attack as the hostile user.
pub fn run(attack: Attack, processor: &str, folder: &Path) -> BenchResult<()> {
    let processor = processor.parse().map_err(|_| format!("{processor}: not a processor"))?;
    use_processors(&[processor])?;
    allow_many_descriptors()?;
    let sockets = HOSTS.map(|host| socket_of(folder, host));
    let attacker = Attacker { sockets, deadline: Instant::now() + ATTACK_TIMEOUT };
    match attack {
        Attack::Computing => attacker.on_each_host(LOGIN_THREADS, |_| {
            std::hint::spin_loop();
            Ok(())
        }),
        Attack::Messages => attacker.on_each_host(FLOODS, |socket| {
            let mut client = log_in(socket, HOSTILE_UID)?;
            attacker.flood(&mut client, &JobRequest::OutputAck(1))
        }),
        Attack::Signals => attacker.on_each_host(1, |socket| attacker.flood_of_signals(socket)),
        Attack::Connections => attacker.on_each_host(1, |socket| attacker.stay_silent(socket)),
        Attack::Reconnects => attacker.on_each_host(1, |socket| attacker.reconnect(socket)),
        Attack::Frames => attacker.on_each_host(1, send_unfinished_frames),
        Attack::Bytes => attacker.on_each_host(1, |socket| attacker.send_single_bytes(socket)),
        Attack::Elements => attacker.on_each_host(1, request_many_elements),
        Attack::Logins => attacker.on_each_host(LOGIN_THREADS, list_jobs),
        Attack::Leftovers => attacker.leave_files_behind(processor),
        Attack::Stops => attacker.stop_shepherd(),
        Attack::Program => attacker.send_program(),
    }
}

/// The processes of the hostile user, and the sockets that they attack.
struct Attacker {
    /// The sockets of the hosts, in the order of the hosts.
    sockets: [PathBuf; 2],
    deadline: Instant,
}

impl Attacker {
    /// Repeats `action` on `threads` threads for each host, also after an error.
    fn on_each_host(
        &self,
        threads: u32,
        action: impl Fn(&Path) -> BenchResult<()> + Sync,
    ) -> BenchResult<()> {
        let repeat = |socket: &Path| {
            while Instant::now() < self.deadline {
                if action(socket).is_err() {
                    sleep(Duration::from_millis(1));
                }
            }
        };
        scope(|threads_of_attack| {
            for socket in &self.sockets {
                (0..threads).for_each(|_| drop(threads_of_attack.spawn(|| repeat(socket))));
            }
            println!("ready");
        });
        Ok(())
    }

    /// Sends the same request until scored closes the connection.
    fn flood(&self, client: &mut Connection, request: &JobRequest) -> BenchResult<()> {
        let flood = encode(JOB, &UserRequest::Job(request.clone()))?.repeat(1 << 14);
        while Instant::now() < self.deadline {
            match write_bytes(client, &flood, WRITE_TIMEOUT) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(error.to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn flood_of_signals(&self, socket: &Path) -> BenchResult<()> {
        let program = ["sh", "-c", "trap '' USR1; echo up; sleep 1000"];
        let spec = with_options(&program, &[("hetero", ""), ("priority", "15")]);
        let mut client = log_in(socket, HOSTILE_UID)?;
        start_job(&mut client, AllocationRequest::HostsByProcs { hosts: 2, procs: 1 }, spec)?;
        self.flood(&mut client, &JobRequest::Signal(Signal::SIGUSR1 as i32))
    }

    /// Keeps connections that never log in, and replaces those that scored closes.
    fn stay_silent(&self, socket: &Path) -> BenchResult<()> {
        let mut connections: Vec<UnixStream> = Vec::new();
        while Instant::now() < self.deadline {
            connections.retain_mut(is_open);
            while connections.len() < SILENT_CONNECTIONS {
                let connection = UnixStream::connect(socket).map_err(|error| error.to_string())?;
                connection.set_nonblocking(true).map_err(|error| error.to_string())?;
                connections.push(connection);
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Takes each place in the queue as soon as it is free, and closes the connection.
    fn reconnect(&self, socket: &Path) -> BenchResult<()> {
        while Instant::now() < self.deadline {
            // Most attempts fail, because the queue is full.
            let _ = mio::net::UnixStream::connect(socket);
        }
        Ok(())
    }

    fn send_single_bytes(&self, socket: &Path) -> BenchResult<()> {
        let request = UserRequest::Job(JobRequest::Stdin(vec![0; UNFINISHED_FRAME_LEN]));
        let frame = encode(JOB, &request)?;
        let mut clients = Vec::new();
        for _ in 0..TRICKLING_LOGINS {
            let client = log_in(socket, HOSTILE_UID)?;
            write_bytes(&client, &frame[..8], WRITE_TIMEOUT).map_err(|error| error.to_string())?;
            clients.push(client);
        }
        while Instant::now() < self.deadline {
            for client in &clients {
                // The byte may not fit into the socket if the daemon has not read earlier bytes.
                let _ = write_bytes(client, &[0], Duration::ZERO);
            }
        }
        Ok(())
    }

    fn stop_shepherd(&self) -> BenchResult<()> {
        let mut client = log_in(&self.sockets[0], HOSTILE_UID)?;
        let spec = with_options(&["sh", "-c", "echo up; exec yes > /dev/null"], &[SHARED]);
        start_job(&mut client, AllocationRequest::FewestHosts(1), spec)?;
        let shepherds = own_shepherds();
        println!("ready");
        while Instant::now() < self.deadline {
            for shepherd in &shepherds {
                kill(*shepherd, Signal::SIGSTOP).map_err(|errno| format!("a shepherd: {errno}"))?;
            }
            sleep(STOP_INTERVAL);
        }
        Ok(())
    }

    /// Creates many files and does not remove them. They are created on the hostile user's
    /// processor.
    fn leave_files_behind(&self, processor: usize) -> BenchResult<()> {
        let script = format!(
            "seq {LEFT_FILES} | taskset -c {processor} xargs -n 2000 touch && echo up && sleep 1000"
        );
        let spec = with_options(&["sh", "-c", &script], &[ALONE]);
        let mut is_ready = false;
        while Instant::now() < self.deadline {
            let mut client = log_in(&self.sockets[0], HOSTILE_UID)?;
            start_job(&mut client, AllocationRequest::FewestHosts(1), spec.clone())?;
            if !std::mem::replace(&mut is_ready, true) {
                println!("ready");
            }
            for shepherd in own_shepherds() {
                // The shepherd may have ended already.
                let _ = kill(shepherd, Signal::SIGKILL);
            }
            wait_for_end(&mut client)?;
        }
        Ok(())
    }

    /// Sends a program, through a login on the host on which the job does not run.
    fn send_program(&self) -> BenchResult<()> {
        println!("ready");
        while Instant::now() < self.deadline {
            let mut client = log_in(&self.sockets[0], HOSTILE_UID)?;
            let digest = Some(FileDigest { hash: [1; 32], size: LARGE_PROGRAM_LEN });
            let program = ElementSpec { digest, ..system_program(&["/large"]) };
            let spec = JobSpec { options: options(&[ALONE]), ..job_of_stages(vec![program]) };
            request(&mut client, AllocationRequest::FewestHosts(1), spec)?;
            send_requested_pieces(&mut client)?;
        }
        Ok(())
    }
}

/// The option for jobs on the processor of the other user's jobs, and the option for jobs on
/// another processor.
pub const SHARED: (&str, &str) = ("nodes", "1.shared");
const ALONE: (&str, &str) = ("nodes", "1.hostile");

fn options(options: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
    let value = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    options.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect()
}

/// Makes a job of one program with these options.
pub fn with_options(program: &[&str], named: &[(&str, &str)]) -> JobSpec {
    let options = options(named);
    // The options are constants of this program.
    let terms = Box::new(JobTerms::from_options(&options).expect("valid options"));
    JobSpec { options, terms, ..job_of_stages(vec![system_program(program)]) }
}

fn request(
    client: &mut Connection,
    allocation: AllocationRequest,
    spec: JobSpec,
) -> BenchResult<()> {
    Ok(client.send(JOB, &UserRequest::SubmitJob { allocation, spec })?)
}

/// Requests a job, waits for its first output, and returns the output.
pub fn start_job(
    client: &mut Connection,
    allocation: AllocationRequest,
    spec: JobSpec,
) -> BenchResult<String> {
    request(client, allocation, spec)?;
    loop {
        match receive_answer::<JobMessage<JobAnswer>>(client)?.message {
            JobAnswer::Output { bytes, .. } => {
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            JobAnswer::Refused { reason, .. } => return Err(reason),
            JobAnswer::Finished(end) => return Err(format!("a job ended with {}", end.code)),
            _ => {}
        }
    }
}

fn wait_for_end(client: &mut Connection) -> BenchResult<()> {
    while receive_before_end(client)?.is_some() {}
    Ok(())
}

/// Returns the next answer of the job, or `None` if the job or the session has ended.
fn receive_before_end(client: &mut Connection) -> BenchResult<Option<JobAnswer>> {
    loop {
        match client.next::<JobMessage<JobAnswer>>(READ_TIMEOUT)? {
            Received::Refused { .. } => return Ok(None),
            Received::Notice { .. } => {}
            Received::Answer(JobMessage { message: answer, .. }) => {
                let is_end = matches!(answer, JobAnswer::Refused { .. } | JobAnswer::Finished(_));
                return Ok((!is_end).then_some(answer));
            }
        }
    }
}

fn is_open(connection: &mut UnixStream) -> bool {
    match connection.read(&mut [0; 256]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn send_unfinished_frames(socket: &Path) -> BenchResult<()> {
    let frame = encode(JOB, &UserRequest::Job(JobRequest::Stdin(vec![0; UNFINISHED_FRAME_LEN])))?;
    let mut clients = Vec::new();
    for _ in 0..UNFINISHED_FRAMES {
        let client = log_in(socket, HOSTILE_UID)?;
        let mut unsent = &frame[..frame.len() - 1];
        // If the session accepts no more bytes, its frame is unfinished as well.
        while let Ok(written @ 1..) = write_bytes(&client, unsent, WRITE_TIMEOUT) {
            unsent = &unsent[written..];
        }
        clients.push(client);
    }
    Ok(())
}

fn request_many_elements(socket: &Path) -> BenchResult<()> {
    let argument = "x".repeat(ELEMENT_ARGUMENT_LEN);
    let program = system_program(&["true", &argument]);
    let spec = JobSpec { options: options(&[ALONE]), ..job_of_stages(vec![program; ELEMENTS]) };
    let mut client = log_in(socket, HOSTILE_UID)?;
    loop {
        request(&mut client, AllocationRequest::FewestHosts(1), spec.clone())?;
        client.send(JOB, &UserRequest::Job(JobRequest::Kill))?;
        wait_for_end(&mut client)?;
    }
}

/// Returns the shepherds of this user, which are the only ones that it can signal.
fn own_shepherds() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let uid = getuid().as_raw().to_string();
    let is_own_shepherd = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let owner = field("Uid:").and_then(|ids| ids.split_whitespace().next());
        field("Name:").map(str::trim) == Some("scored-shepherd") && owner == Some(&uid)
    };
    pids.filter(is_own_shepherd).map(Pid::from_raw).collect()
}

/// Answers requests for a program's bytes with zeros until the job has ended.
fn send_requested_pieces(client: &mut Connection) -> BenchResult<()> {
    while let Some(answer) = receive_before_end(client)? {
        let JobAnswer::FileRequest { hash, offset, length } = answer else { continue };
        for start in (0..length).step_by(MAX_IO_CHUNK) {
            let bytes = vec![0; (length - start).min(MAX_IO_CHUNK as u64) as usize];
            let offset = offset + start;
            let chunk = JobRequest::FileChunk { hash, offset, bytes };
            client.send(JOB, &UserRequest::Job(chunk))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attack_has_a_name() {
        assert_eq!(Attack::parse("none"), Ok(None));
        for (name, attack) in ATTACKS {
            assert_eq!(Attack::parse(name), Ok(Some(attack)));
            assert_eq!(attack.name(), name);
        }
        assert!(Attack::parse("other").unwrap_err().contains("none, computing, messages"));
    }

    #[test]
    fn a_large_request_fits_into_a_frame() {
        let argument = "x".repeat(ELEMENT_ARGUMENT_LEN);
        let spec = job_of_stages(vec![system_program(&["true", &argument]); ELEMENTS]);
        let allocation = AllocationRequest::FewestHosts(1);
        let frame = encode(JOB, &UserRequest::SubmitJob { allocation, spec }).unwrap();
        assert!(frame.len() > 900_000);
    }
}
