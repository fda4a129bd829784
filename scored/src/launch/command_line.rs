//! Builds the command lines that start daemons on other hosts. The functions depend only on the
//! request and the environment.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::method::{Environment, LaunchMethod};
use super::{
    HOST_PLACEHOLDER, LaunchHost, LaunchRequest, SECRET_ON_STDIN, SECRET_PLACEHOLDER, UNKNOWN_HOST,
};

/// Variable: a remote shell with options, instead of ssh.
const REMOTE_SHELL_ENV: &str = "SCORE_RSH";
/// Variable: the path of scored on other hosts, if it differs from the path on this host.
const REMOTE_SCORED_ENV: &str = "SCORE_SCORED";
/// The time-out of ssh for connecting, in seconds.
const SSH_CONNECT_TIMEOUT_S: u32 = 15;

/// A command line that starts one or more daemons.
#[derive(Debug, PartialEq, Eq)]
pub struct Launch {
    /// The indices of the hosts in the request.
    pub hosts: Vec<usize>,
    /// The command line.
    pub arguments: Vec<OsString>,
}

/// Whether the launcher forwards standard input to the daemons. Otherwise they read the secret from
/// a file that only the user can read.
pub fn forwards_stdin(method: LaunchMethod) -> bool {
    // The task manager of PBS does not connect the standard input of a task.
    method != LaunchMethod::Pbs
}

/// Builds the command lines of a request. `key_file` is for launchers that do not forward standard
/// input.
///
/// # Errors
/// One line that names the invalid part.
pub fn launches(
    method: LaunchMethod,
    request: &LaunchRequest,
    key_file: Option<&Path>,
    environment: Environment<'_>,
) -> Result<Vec<Launch>, String> {
    let command = command_for(method, request, environment)?;
    let secret = key_file.map_or(OsStr::new(SECRET_ON_STDIN), Path::as_os_str);
    let command_for_host = |host: &str| -> Vec<OsString> {
        let substitute = |word: &OsString| {
            if word == HOST_PLACEHOLDER {
                OsString::from(host)
            } else if word == SECRET_PLACEHOLDER {
                secret.to_owned()
            } else {
                word.clone()
            }
        };
        command.iter().map(substitute).collect()
    };
    let one_per_host = |arguments_for: &dyn Fn(&LaunchHost) -> Result<Vec<OsString>, String>| {
        let launch_for = |(position, host): (usize, &LaunchHost)| {
            check_name(host)?;
            Ok(Launch { hosts: vec![position], arguments: arguments_for(host)? })
        };
        request.hosts.iter().enumerate().map(launch_for).collect()
    };
    let one_for_all = |mut arguments: Vec<OsString>| -> Result<Vec<Launch>, String> {
        request.hosts.iter().try_for_each(check_name)?;
        arguments.extend(command_for_host(UNKNOWN_HOST));
        let hosts: Vec<usize> = (0..request.hosts.len()).collect();
        let launch = Launch { hosts, arguments };
        Ok(if request.hosts.is_empty() { Vec::new() } else { vec![launch] })
    };
    match method {
        LaunchMethod::Virtual => one_per_host(&|host| Ok(command_for_host(&host.name))),
        LaunchMethod::Shell => one_per_host(&|host| {
            let mut words = remote_shell(environment)?;
            words.push(host.launch_name.clone().into());
            words.push(shell_line(&command_for_host(&host.name)));
            Ok(words)
        }),
        LaunchMethod::Slurm => one_for_all(srun(&request.hosts)),
        LaunchMethod::Pbs => one_for_all(pbsdsh(environment)),
        LaunchMethod::Lsf => one_per_host(&|host| {
            let start = ["blaunch", "-no-shell", &host.launch_name].map(OsString::from);
            Ok(start.into_iter().chain(command_for_host(&host.name)).collect())
        }),
        LaunchMethod::GridEngine => one_per_host(&|host| {
            let start = ["qrsh", "-inherit", &host.launch_name].map(OsString::from);
            // qrsh passes its arguments through a login shell.
            let command = command_for_host(&host.name);
            Ok(start.into_iter().chain(command.iter().map(|word| quoted(word))).collect())
        }),
    }
}

/// The command of the request, with the path of scored on the other hosts.
fn command_for(
    method: LaunchMethod,
    request: &LaunchRequest,
    environment: Environment<'_>,
) -> Result<Vec<OsString>, String> {
    let mut command = request.command.clone();
    if method != LaunchMethod::Virtual
        && let (Some(path), Some(first)) = (environment(REMOTE_SCORED_ENV), command.first_mut())
    {
        *first = path;
    }
    match command.first() {
        Some(path) if Path::new(path).is_absolute() => Ok(command),
        other => {
            let shown = other.map(|path| path.to_string_lossy()).unwrap_or_default();
            Err(format!(
                "{shown:?}: not an absolute path; set {REMOTE_SCORED_ENV} to the path of scored on \
                 the other hosts"
            ))
        }
    }
}

/// Checks a name. The launcher would treat a name with a leading minus as an option.
fn check_name(host: &LaunchHost) -> Result<(), String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.:@[]".contains(letter);
    let name = &host.launch_name;
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
        return Err(format!("{name:?}: not the name of a host"));
    }
    Ok(())
}

fn remote_shell(environment: Environment<'_>) -> Result<Vec<OsString>, String> {
    let shell = environment(REMOTE_SHELL_ENV).unwrap_or_else(|| "ssh".into());
    let is_blank = |byte: &u8| byte.is_ascii_whitespace();
    let mut words: Vec<OsString> = shell
        .as_bytes()
        .split(is_blank)
        .filter(|word| !word.is_empty())
        .map(|word| OsStr::from_bytes(word).to_owned())
        .collect();
    let program =
        words.first().ok_or(format!("{REMOTE_SHELL_ENV} is empty: unset it, or name ssh"))?;
    if Path::new(program).file_name() == Some(OsStr::new("ssh")) {
        // BatchMode prevents questions, because there is no user to answer them.
        let options = ["-T", "-o", "BatchMode=yes", "-o"].map(OsString::from);
        words.extend(options);
        words.push(format!("ConnectTimeout={SSH_CONNECT_TIMEOUT_S}").into());
    }
    Ok(words)
}

/// The srun command line. It starts one daemon on each node of the allocation. The daemon may use
/// the whole node, even if other steps run there. The end of one daemon does not end the others.
fn srun(hosts: &[LaunchHost]) -> Vec<OsString> {
    let names: Vec<&str> = hosts.iter().map(|host| host.launch_name.as_str()).collect();
    let count = hosts.len();
    let mut words: Vec<OsString> = ["srun", "--quiet", "--overlap", "--no-kill"]
        .into_iter()
        .chain(["--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none"])
        .chain(["--input=all", "--ntasks-per-node=1"])
        .map(OsString::from)
        .collect();
    words.push(format!("--nodes={count}").into());
    words.push(format!("--ntasks={count}").into());
    words.push(format!("--nodelist={}", names.join(",")).into());
    words
}

/// The pbsdsh command line. It starts one daemon on each host of the job if pbsdsh supports that;
/// otherwise one daemon on each slot, and the server rejects the duplicates. One command starts all
/// daemons, because a job may have only one client of its task manager at a time.
fn pbsdsh(environment: Environment<'_>) -> Vec<OsString> {
    let version = environment("PBS_VERSION").unwrap_or_default();
    let is_torque = version.to_string_lossy().to_ascii_uppercase().starts_with("TORQUE");
    let words: &[&str] = if is_torque { &["pbsdsh", "-u"] } else { &["pbsdsh", "--"] };
    words.iter().map(OsString::from).collect()
}

/// Builds a command line for the login shell of another host, which may be any shell. `exec`
/// replaces the shell with the program.
fn shell_line(words: &[OsString]) -> OsString {
    let mut line = OsString::from("exec");
    for word in words {
        line.push(" ");
        line.push(quoted(word));
    }
    line
}

/// Quotes a word so that sh, csh and fish take it literally.
fn quoted(word: &OsStr) -> OsString {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:,=@%+".contains(byte);
    if !word.is_empty() && word.as_bytes().iter().all(is_plain) {
        return word.to_owned();
    }
    let mut bytes = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => bytes.extend(br"'\''"),
            other => bytes.push(*other),
        }
    }
    bytes.push(b'\'');
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(names: &[&str]) -> LaunchRequest {
        let host = |name: &&str| {
            let name = (*name).to_owned();
            LaunchHost { position: 0, launch_name: name.clone(), name }
        };
        let command =
            ["/opt/score/scored", "-daemon", "-host", HOST_PLACEHOLDER, "-key", SECRET_PLACEHOLDER];
        LaunchRequest {
            hosts: names.iter().map(host).collect(),
            command: command.map(OsString::from).to_vec(),
            secret: Vec::new(),
        }
    }

    fn lines(
        method: LaunchMethod,
        request: &LaunchRequest,
        variables: &[(&str, &str)],
    ) -> Vec<String> {
        let environment = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| OsString::from(value))
        };
        let file = (!forwards_stdin(method)).then_some(Path::new("/shared/u/.score/key"));
        let show = |launch: Launch| {
            let words = launch.arguments.iter().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join("|")
        };
        let found = launches(method, request, file, &environment).unwrap();
        found.into_iter().map(show).collect()
    }

    #[test]
    fn ssh_runs_without_questions_and_gets_one_line_for_the_shell() {
        assert_eq!(
            lines(LaunchMethod::Shell, &request(&["n1", "n2"]), &[])[1],
            "ssh|-T|-o|BatchMode=yes|-o|ConnectTimeout=15|n2|\
             exec /opt/score/scored -daemon -host n2 -key -"
        );
    }

    #[test]
    fn another_remote_shell_and_path_are_taken_from_the_environment() {
        let variables = [("SCORE_RSH", "rsh -l me"), ("SCORE_SCORED", "/opt/my score/scored")];
        assert_eq!(
            lines(LaunchMethod::Shell, &request(&["n1"]), &variables)[0],
            "rsh|-l|me|n1|exec '/opt/my score/scored' -daemon -host n1 -key -"
        );
        let ssh =
            lines(LaunchMethod::Shell, &request(&["n1"]), &[("SCORE_RSH", "/usr/bin/ssh -p 22")]);
        assert!(ssh[0].starts_with("/usr/bin/ssh|-p|22|-T|-o|BatchMode=yes|"), "{ssh:?}");
    }

    #[test]
    fn srun_starts_one_daemon_on_each_node_by_one_command() {
        assert_eq!(
            lines(LaunchMethod::Slurm, &request(&["n1", "n2", "n3"]), &[]),
            ["srun|--quiet|--overlap|--no-kill|--kill-on-bad-exit=0|--wait=0|--mpi=none|\
              --cpu-bind=none|--input=all|--ntasks-per-node=1|--nodes=3|--ntasks=3|\
              --nodelist=n1,n2,n3|/opt/score/scored|-daemon|-host|?|-key|-"]
        );
    }

    #[test]
    fn pbsdsh_starts_all_and_the_key_is_in_a_file() {
        assert_eq!(
            lines(LaunchMethod::Pbs, &request(&["n1", "n2"]), &[]),
            ["pbsdsh|--|/opt/score/scored|-daemon|-host|?|-key|/shared/u/.score/key"]
        );
        let torque =
            lines(LaunchMethod::Pbs, &request(&["n1"]), &[("PBS_VERSION", "TORQUE-6.1.3")]);
        assert!(torque[0].starts_with("pbsdsh|-u|/opt/score/scored|"), "{torque:?}");
    }

    #[test]
    fn blaunch_and_qrsh_get_the_host() {
        assert_eq!(
            lines(LaunchMethod::Lsf, &request(&["a", "b"]), &[])[1],
            "blaunch|-no-shell|b|/opt/score/scored|-daemon|-host|b|-key|-"
        );
        assert_eq!(
            lines(LaunchMethod::GridEngine, &request(&["a"]), &[])[0],
            "qrsh|-inherit|a|/opt/score/scored|-daemon|-host|a|-key|-"
        );
    }

    #[test]
    fn a_host_that_looks_like_an_option_and_a_relative_path_are_refused() {
        for name in ["-oProxyCommand=x", "", "a b", "a;b"] {
            for method in [LaunchMethod::Shell, LaunchMethod::Slurm, LaunchMethod::Lsf] {
                let error = launches(method, &request(&[name]), None, &|_| None).unwrap_err();
                assert!(error.contains("not the name of a host"), "{error}");
            }
        }
        let mut relative = request(&["n1"]);
        relative.command[0] = "scored".into();
        let error = launches(LaunchMethod::Shell, &relative, None, &|_| None).unwrap_err();
        assert!(error.contains("SCORE_SCORED"), "{error}");
    }

    #[test]
    fn a_quoted_word_passes_a_shell_unchanged() {
        for word in ["plain", "", "with 'quotes' and $x", "a\nb", "*"] {
            let line = format!("printf %s {}", quoted(OsStr::new(word)).to_string_lossy());
            let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
