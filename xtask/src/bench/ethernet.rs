//! PM/Ethernet beside TCP and iperf3, between two network namespaces joined by veth: its wires, and
//! the device over each of them.

use serde_json::Value;

use crate::bench::calls::output;
use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::{Bench, Rows};

const NS: (&str, Better) = ("ns one way", Better::Less);
const RATE: (&str, Better) = ("Gbit/s", Better::More);
/// The contenders as `score-wires` names them, with what they are aimed at by TCP (issue 3, "How
/// fast").
const WIRES: [(&str, &str, Option<f64>); 7] = [
    ("tcp", "TCP, TCP_NODELAY", None),
    ("udp", "UDP wire", Some(0.85)),
    ("packet", "AF_PACKET wire", Some(0.55)),
    ("xdp", "AF_XDP wire", Some(0.4)),
    ("pm-udp", "device, UDP", None),
    ("pm-packet", "device, AF_PACKET", None),
    ("pm-xdp", "device, AF_XDP", None),
];
const MTUS: [u32; 2] = [1500, 9000];
/// One packet in a hundred.
const LOSS: &str = "drop=0.01,seed=1";
/// Mbit/s of a limited link.
const LIMIT: &str = "500";

/// 8 bytes one way, bandwidth, what loss costs, what a second link brings, what composite adds.
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
    rows.extend(raw_bandwidth(bench)?);
    rows.extend(remote(bench)?);
    rows.extend(trunk(bench)?);
    rows.extend(composite(bench)?);
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

/// One figure of `score-wires bandwidth`.
fn gigabits(bench: &Bench, words: &[&str]) -> Result<f64, String> {
    let told = wires(bench, words)?;
    let figure = told.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    figure.ok_or_else(|| format!("score-wires {} says {told:?}", words.join(" ")))
}

/// Rounds of several bandwidths, interleaved: who, and by which words.
fn contest(
    bench: &Bench,
    name: &'static str,
    what: &str,
    contenders: &[(&str, Vec<&str>)],
) -> Rows {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..bench.rounds {
        bench.progress(&format!("{name}, {what}"), round);
        for ((_, words), figures) in contenders.iter().zip(&mut rounds) {
            figures.push(if words[0] == "hosts" {
                let told: Value = serde_json::from_str(&wires(bench, words)?)
                    .map_err(|error| format!("iperf3 -J: {error}"))?;
                let bits = told["end"]["sum_received"]["bits_per_second"].as_f64();
                bits.ok_or("iperf3 -J tells no bits_per_second")? / 1e9
            } else {
                gigabits(bench, words)?
            });
        }
    }
    let row = |((who, words), figures): (&(&str, Vec<&str>), Vec<f64>)| {
        let command = format!("score-wires {}", words.join(" "));
        Row::new(name, what, who, RATE, figures, &command)
    };
    Ok(contenders.iter().zip(rounds).map(row).collect())
}

fn bandwidth(bench: &Bench, mtu: u32) -> Rows {
    let (cores, link) = (cores(bench), mtu.to_string());
    let (server, client) = ("-s -1", "-c 10.9.0.1 -t 1 -J");
    let common = ["bandwidth", "-mtu", &link, "-cores", &cores];
    let ours = |more: &[&'static str]| [&common[..], more].concat();
    let mut contenders = vec![
        ("UDP wire", ours(&["udp"])),
        ("device, UDP", ours(&["pm-udp"])),
        ("device, 1 % lost", ours(&["-loss", LOSS, "pm-udp"])),
    ];
    if bench.peers.iperf3 {
        let words = vec!["hosts", "-mtu", &link, "-cores", &cores, "iperf3", server, client];
        contenders.push(("iperf3, TCP", words));
    }
    let mut rows = contest(bench, "ethernet bandwidth", &format!("MTU {mtu}"), &contenders)?;
    if let [wire, device, lossy, others @ ..] = &mut rows[..] {
        for tcp in others {
            let aim = (mtu == 1500).then_some(1.5);
            wire.beside.push(Comparison::of(wire, tcp, aim));
            device.beside.push(Comparison::of(device, tcp, None));
        }
        device.beside.push(Comparison::of(device, wire, None));
        lossy.beside.push(Comparison::of(lossy, device, Some(0.9)));
    }
    Ok(rows)
}

/// The wires that have no offload.
fn raw_bandwidth(bench: &Bench) -> Rows {
    let cores = cores(bench);
    let ours = |wire| vec!["bandwidth", "-cores", &cores, wire];
    let contenders = [
        ("AF_PACKET wire", ours("packet")),
        ("device, AF_PACKET", ours("pm-packet")),
        ("AF_XDP wire", ours("xdp")),
        ("device, AF_XDP", ours("pm-xdp")),
    ];
    let mut rows = contest(bench, "ethernet bandwidth", "MTU 1500", &contenders)?;
    for pair in rows.chunks_mut(2) {
        if let [wire, device] = pair {
            device.beside.push(Comparison::of(device, wire, None));
        }
    }
    Ok(rows)
}

/// Remote memory beside messages of the same device (issue 5, "How fast"), in turns of
/// milliseconds: where the host places two virtual processors, near to one another or far apart,
/// changes within seconds, and makes a factor of 2.6.
fn remote(bench: &Bench) -> Rows {
    const AIM: f64 = 0.97;
    let cores = cores(bench);
    let mut all = Vec::new();
    for (mtu, wire, name) in [
        ("1500", "pm-udp", "MTU 1500, UDP"),
        ("9000", "pm-udp", "MTU 9000, UDP"),
        ("1500", "pm-packet", "MTU 1500, AF_PACKET"),
        ("9000", "pm-packet", "MTU 9000, AF_PACKET"),
        ("1500", "pm-xdp", "MTU 1500, AF_XDP"),
    ] {
        let contenders = [
            ("pmWrite, memory of pmAlloc", "beside-write"),
            ("pmRead, memory of pmAlloc", "beside-read"),
            ("pmWrite, other memory", "beside-write-other"),
            ("pmRead, other memory", "beside-read-other"),
        ];
        let mut rounds = vec![[Vec::new(), Vec::new()]; contenders.len()];
        for round in 0..bench.rounds {
            bench.progress(&format!("ethernet remote memory, {name}"), round);
            for ((_, what), rates) in contenders.iter().zip(&mut rounds) {
                let told = wires(bench, &[what, "-mtu", mtu, "-cores", &cores, wire])?;
                let words = told.split_whitespace().skip(4).map(str::parse);
                let Ok([messages, moved]) = <[_; 2]>::try_from(words.collect::<Vec<_>>()) else {
                    return Err(format!("score-wires {what} says {told:?}"));
                };
                let bad = |_| format!("score-wires {what} says {told:?}");
                rates[0].push(messages.map_err(bad)?);
                rates[1].push(moved.map_err(bad)?);
            }
        }
        for ((who, what), [messages, moved]) in contenders.into_iter().zip(rounds) {
            let command = format!("score-wires {what} -mtu {mtu} -cores {cores} {wire}");
            let row =
                |who, rates| Row::new("ethernet remote memory", name, who, RATE, rates, &command);
            let (messages, mut moved) = (row("messages", messages), row(who, moved));
            moved.beside.push(Comparison::of(&moved, &messages, Some(AIM)));
            all.extend([messages, moved]);
        }
    }
    Ok(all)
}

/// Two links beside one, each limited.
fn trunk(bench: &Bench) -> Rows {
    let cores = cores(bench);
    let ours =
        |links| vec!["bandwidth", "-cores", &cores, "-rate", LIMIT, "-links", links, "pm-udp"];
    let contenders = [("device, 1 link", ours("1")), ("device, 2 links", ours("2"))];
    let mut rows = contest(bench, "ethernet trunk", &format!("{LIMIT} Mbit/s each"), &contenders)?;
    if let [one, two] = &mut rows[..] {
        two.beside.push(Comparison::of(two, one, Some(1.9)));
    }
    Ok(rows)
}

/// What composite adds to a message over shared memory.
fn composite(bench: &Bench) -> Rows {
    let cores = cores(bench);
    let words = ["composite", "-cores", &cores];
    let ways = ["one way", "one thread, send and receive"];
    let mut rounds = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 0..bench.rounds {
        bench.progress("what composite adds", round);
        let told = wires(bench, &words)?;
        for (who, rounds) in ["plain ", "composite "].into_iter().zip(&mut rounds) {
            let line = told.lines().find_map(|line| line.strip_prefix(who));
            let figures: Vec<f64> = line
                .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
                .unwrap_or_default();
            let [median, _, alone] = figures[..] else {
                return Err(format!("score-wires composite says {told:?}"));
            };
            rounds[0].push(median);
            rounds[1].push(alone);
        }
    }
    let command = format!("score-wires {}", words.join(" "));
    let [plain, composite] = rounds;
    let mut rows = Vec::new();
    for ((what, plain), composite) in ways.into_iter().zip(plain).zip(composite) {
        let adds = composite.iter().zip(&plain).map(|(with, without)| with - without).collect();
        let row = |who, figures| {
            Row::new("composite over shmem", what, who, ("ns", Better::Less), figures, &command)
        };
        rows.extend([row("plain", plain), row("composite", composite)]);
        rows.push(Row { aim: Some(5.0), ..row("composite adds", adds) });
    }
    Ok(rows)
}
