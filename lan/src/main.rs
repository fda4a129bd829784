//! score-lan: runs a command on every host of a virtual LAN, for tests and measurements.
#![forbid(unsafe_code)]

use std::process::{Child, Command, ExitCode};

use score_lan::{Lan, LanPlan};

const HELP: &str = "\
usage: score-lan [-hosts N] [-links L] [-mtu BYTES] [-rate RATE] COMMAND [ARGUMENT...]
  runs COMMAND on each of N (default: 2) virtual hosts at the same time, and waits for all of them.
  The exit code is the largest exit code of these commands. LAN_HOST is the number of the host,
  LAN_HOSTS is the number of hosts, and LAN_ADDRESS is the address of the host. On the first
  network, host 0 has 10.77.0.1 and host 1 has 10.77.0.2. On the second, host 0 has 10.78.0.1.
  RATE limits each link in each direction: 200mbit, 1gbit.
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if matches!(words.first().map(String::as_str), None | Some("-help" | "--help")) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match run(&words) {
        Ok(code) => ExitCode::from(code),
        Err(reason) => {
            eprintln!("score-lan: {reason}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[String]) -> Result<u8, String> {
    let mut plan = LanPlan::new(2);
    let mut rest = words;
    while let [option, after @ ..] = rest
        && let Some(name) = option.strip_prefix('-')
    {
        let [value, after @ ..] = after else { return Err(format!("{option} needs a value")) };
        if name == "hosts" {
            plan.hosts = value.parse().map_err(|_| format!("{option} {value}: not a number"))?;
        } else {
            plan.set(name, value)?;
        }
        rest = after;
    }
    let [program, arguments @ ..] = rest else { return Err("no command (score-lan -help)".into()) };
    let lan = Lan::build(&plan).map_err(|error| error.to_string())?;
    let start = |host: u32| -> Result<Child, String> {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LAN_HOST", host.to_string())
            .env("LAN_HOSTS", plan.hosts.to_string())
            .env("LAN_ADDRESS", lan.address(host).to_string());
        lan.run_on_host(host, || command.spawn())
            .and_then(|started| started)
            .map_err(|error| format!("{program} on {}: {error}", plan.name(host)))
    };
    let children: Vec<_> = (0..plan.hosts).map(start).collect();
    let mut worst = 0;
    let mut failure = None;
    for child in children {
        match child.map(|mut child| child.wait()) {
            Ok(Ok(status)) => {
                worst = worst.max(status.code().and_then(|code| code.try_into().ok()).unwrap_or(1));
            }
            Ok(Err(error)) => failure = Some(error.to_string()),
            Err(reason) => failure = Some(reason),
        }
    }
    failure.map_or(Ok(worst), Err)
}
