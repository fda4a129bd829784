//! The wires of PM/Ethernet beside TCP and iperf3, between two network namespaces joined by veth.

use serde_json::Value;

use crate::bench::calls::output;
use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::{Bench, Rows};

const NS: (&str, Better) = ("ns one way", Better::Less);
const RATE: (&str, Better) = ("Gbit/s", Better::More);
/// The contenders as `score-wires` names them, with what they are aimed at by TCP (issue 3, "How
/// fast").
const WIRES: [(&str, &str, Option<f64>); 4] = [
    ("tcp", "TCP, TCP_NODELAY", None),
    ("udp", "UDP wire", Some(0.85)),
    ("packet", "AF_PACKET wire", Some(0.55)),
    ("xdp", "AF_XDP wire", Some(0.4)),
];
const MTUS: [u32; 2] = [1500, 9000];

/// 8 bytes one way on each wire, and the UDP wire's bandwidth.
///
/// # Errors
/// A command failed.
pub fn ethernet(bench: &Bench) -> Rows {
    if !run_as_root()? {
        println!("  ethernet: makes network namespaces, so it needs root");
        return Ok(Vec::new());
    }
    let mut rows = latency(bench)?;
    for mtu in MTUS {
        rows.extend(bandwidth(bench, mtu)?);
    }
    Ok(rows)
}

fn run_as_root() -> Result<bool, String> {
    let id = output(&["id".to_owned(), "-u".to_owned()])?;
    Ok(id.trim() == "0")
}

/// `score-wires` with these words.
fn wires(bench: &Bench, words: &[&str]) -> Result<String, String> {
    let program = bench.programs.join("score-wires").to_string_lossy().into_owned();
    let mut line = vec![program];
    line.extend(words.iter().map(|word| (*word).to_owned()));
    output(&line)
}

fn cores(bench: &Bench) -> String {
    format!("{},{}", bench.cores[0], bench.cores[1])
}

fn latency(bench: &Bench) -> Rows {
    let cores = cores(bench);
    let words = ["latency", "-cores", &cores, "-seconds", "0.5"];
    let mut rounds = vec![Vec::new(); WIRES.len()];
    for round in 0..bench.rounds {
        bench.progress("8 bytes on each wire", round);
        let told = wires(bench, &words)?;
        for ((name, _, _), figures) in WIRES.iter().zip(&mut rounds) {
            let line = told.lines().find_map(|line| line.strip_prefix(*name));
            let median = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            figures.push(median.ok_or_else(|| format!("score-wires latency says no {name}"))?);
        }
    }
    let command = format!("score-wires {}", words.join(" "));
    let row = |((_, who, _), figures): (&(&str, &str, Option<f64>), Vec<f64>)| {
        Row::new("ethernet latency", "8 B", who, NS, figures, &command)
    };
    let mut rows: Vec<Row> = WIRES.iter().zip(rounds).map(row).collect();
    let tcp = rows[0].clone();
    for (row, (_, _, aim)) in rows.iter_mut().zip(WIRES).skip(1) {
        row.beside = vec![Comparison::of(row, &tcp, aim)];
    }
    Ok(rows)
}

fn bandwidth(bench: &Bench, mtu: u32) -> Rows {
    let (cores, link) = (cores(bench), mtu.to_string());
    let own = ["bandwidth", "-mtu", &link, "-cores", &cores, "-seconds", "1", "udp"];
    let (server, client) = ("-s -1", "-c 10.9.0.1 -t 1 -J");
    let other = ["hosts", "-mtu", &link, "-cores", &cores, "iperf3", server, client];
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        bench.progress(&format!("bandwidth at an MTU of {mtu}"), round);
        let told = wires(bench, &own)?;
        let figure = told.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        ours.push(figure.ok_or_else(|| format!("score-wires bandwidth says {told:?}"))?);
        if bench.peers.iperf3 {
            let told: Value = serde_json::from_str(&wires(bench, &other)?)
                .map_err(|error| format!("iperf3 -J: {error}"))?;
            let bits = told["end"]["sum_received"]["bits_per_second"].as_f64();
            theirs.push(bits.ok_or("iperf3 -J tells no bits_per_second")? / 1e9);
        }
    }
    let what = format!("MTU {mtu}");
    let row = |who, figures, words: &[&str]| {
        let command = format!("score-wires {}", words.join(" "));
        Row::new("ethernet bandwidth", &what, who, RATE, figures, &command)
    };
    let mut rows = vec![row("UDP wire", ours, &own)];
    if bench.peers.iperf3 {
        rows.push(row("iperf3, TCP", theirs, &other));
        let aim = (mtu == 1500).then_some(1.5);
        rows[0].beside = vec![Comparison::of(&rows[0], &rows[1], aim)];
    }
    Ok(rows)
}
