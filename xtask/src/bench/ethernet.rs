//! Compares the wires of PM/Ethernet, and the device over each wire, with TCP and iperf3. Runs
//! between two network namespaces joined by veth.

use serde_json::Value;

use crate::bench::command::command_stdout;
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

const NS_ONE_WAY: (&str, Direction) = ("ns one way", Direction::LowerIsBetter);
const GBIT_PER_S: (&str, Direction) = ("Gbit/s", Direction::HigherIsBetter);
/// The contenders, by their names in `score-wires`, and the target of each: its one-way latency
/// divided by the latency of TCP.
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
/// Loses one packet in a hundred.
const LOSS: &str = "drop=0.01,seed=1";
/// Mbit/s of a limited link.
const LINK_RATE_MBIT: &str = "500";

// Promise (speed): 8 bytes one way between two namespaces, by TCP with TCP_NODELAY in the same run:
// AF_XDP at most 0.4, AF_PACKET 0.55, the UDP wire 0.85; bandwidth of the UDP wire at least 1.5 ×
// iperf3's TCP; 1 % loss costs less than 10 % of the bandwidth; two rate-limited links carry at
// least 1.9 × one; composite adds less than 5 ns to a message over shmem.
/// Measures the one-way latency of 8 bytes, bandwidth, the cost of packet loss, the gain of a
/// second link, and the cost of composite.
///
/// # Errors
/// Returns an error if a command failed.
pub fn ethernet(bench: &Bench) -> BenchOutcome {
    if !is_root()? {
        println!("  ethernet: needs root to create network namespaces");
        return Ok(Vec::new());
    }
    let mut rows = latency(bench)?;
    for mtu in MTUS {
        rows.extend(bandwidth(bench, mtu)?);
    }
    rows.extend(raw_bandwidth(bench)?);
    rows.extend(remote_memory(bench)?);
    rows.extend(trunk(bench)?);
    rows.extend(composite(bench)?);
    Ok(rows)
}

fn is_root() -> Result<bool, String> {
    let id = command_stdout(&["id".to_owned(), "-u".to_owned()])?;
    Ok(id.trim() == "0")
}

/// Runs `score-wires` with these arguments.
fn score_wires(bench: &Bench, words: &[&str]) -> Result<String, String> {
    let program = bench.program_dir.join("score-wires").to_string_lossy().into_owned();
    let mut args = vec![program];
    args.extend(words.iter().map(|word| (*word).to_owned()));
    command_stdout(&args)
}

fn cores_arg(bench: &Bench) -> String {
    format!("{},{}", bench.cores[0], bench.cores[1])
}

fn latency(bench: &Bench) -> BenchOutcome {
    let cores = cores_arg(bench);
    let words = ["latency", "-cores", &cores, "-seconds", "0.5"];
    let mut all_samples = vec![Vec::new(); WIRES.len()];
    for round in 0..bench.round_count {
        bench.progress("8 bytes on each wire", round);
        let output = score_wires(bench, &words)?;
        for ((name, _, _), samples) in WIRES.iter().zip(&mut all_samples) {
            let line = output.lines().find_map(|line| line.strip_prefix(*name));
            let median = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            samples
                .push(median.ok_or_else(|| format!("score-wires latency: no result for {name}"))?);
        }
    }
    let command = format!("score-wires {}", words.join(" "));
    let row = |((_, contender, _), samples): (&(&str, &str, Option<f64>), Vec<f64>)| {
        BenchResult::new("ethernet latency", "8 B", contender, NS_ONE_WAY, samples, &command)
    };
    let mut rows: Vec<BenchResult> = WIRES.iter().zip(all_samples).map(row).collect();
    let tcp = rows[0].clone();
    for (row, (_, _, target)) in rows.iter_mut().zip(WIRES).skip(1) {
        row.comparisons = vec![Comparison::new(row, &tcp, target)];
    }
    Ok(rows)
}

/// Returns one result of `score-wires bandwidth`.
fn gbit_per_s(bench: &Bench, words: &[&str]) -> Result<f64, String> {
    let output = score_wires(bench, words)?;
    let value = output.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    value.ok_or_else(|| format!("score-wires {}: unexpected output {output:?}", words.join(" ")))
}

/// Measures several bandwidths in interleaved rounds. Each contender has its own arguments.
fn run_interleaved(
    bench: &Bench,
    name: &'static str,
    case: &str,
    contenders: &[(&str, Vec<&str>)],
) -> BenchOutcome {
    let mut all_samples = vec![Vec::new(); contenders.len()];
    for round in 0..bench.round_count {
        bench.progress(&format!("{name}, {case}"), round);
        for ((_, words), samples) in contenders.iter().zip(&mut all_samples) {
            samples.push(if words[0] == "hosts" {
                let report: Value = serde_json::from_str(&score_wires(bench, words)?)
                    .map_err(|error| format!("iperf3 -J: {error}"))?;
                let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
                bits.ok_or("iperf3 -J: no bits_per_second")? / 1e9
            } else {
                gbit_per_s(bench, words)?
            });
        }
    }
    let row = |((contender, words), samples): (&(&str, Vec<&str>), Vec<f64>)| {
        let command = format!("score-wires {}", words.join(" "));
        BenchResult::new(name, case, contender, GBIT_PER_S, samples, &command)
    };
    Ok(contenders.iter().zip(all_samples).map(row).collect())
}

fn bandwidth(bench: &Bench, mtu: u32) -> BenchOutcome {
    let (cores, mtu_text) = (cores_arg(bench), mtu.to_string());
    let (server, client) = ("-s -1", "-c 10.9.0.1 -t 1 -J");
    let common = ["bandwidth", "-mtu", &mtu_text, "-cores", &cores];
    let with_options = |more: &[&'static str]| [&common[..], more].concat();
    let mut contenders = vec![
        ("UDP wire", with_options(&["udp"])),
        ("device, UDP", with_options(&["pm-udp"])),
        ("device, 1 % lost", with_options(&["-loss", LOSS, "pm-udp"])),
    ];
    if bench.competitors.has_iperf3 {
        let words = vec!["hosts", "-mtu", &mtu_text, "-cores", &cores, "iperf3", server, client];
        contenders.push(("iperf3, TCP", words));
    }
    let mut rows =
        run_interleaved(bench, "ethernet bandwidth", &format!("MTU {mtu}"), &contenders)?;
    if let [wire, device, lossy, others @ ..] = &mut rows[..] {
        for tcp in others {
            let target = (mtu == 1500).then_some(1.5);
            wire.comparisons.push(Comparison::new(wire, tcp, target));
            device.comparisons.push(Comparison::new(device, tcp, None));
        }
        device.comparisons.push(Comparison::new(device, wire, None));
        lossy.comparisons.push(Comparison::new(lossy, device, Some(0.9)));
    }
    Ok(rows)
}

/// Measures the bandwidth of the wires without offload.
fn raw_bandwidth(bench: &Bench) -> BenchOutcome {
    let cores = cores_arg(bench);
    let bandwidth_args = |wire| vec!["bandwidth", "-cores", &cores, wire];
    let contenders = [
        ("AF_PACKET wire", bandwidth_args("packet")),
        ("device, AF_PACKET", bandwidth_args("pm-packet")),
        ("AF_XDP wire", bandwidth_args("xdp")),
        ("device, AF_XDP", bandwidth_args("pm-xdp")),
    ];
    let mut rows = run_interleaved(bench, "ethernet bandwidth", "MTU 1500", &contenders)?;
    for pair in rows.chunks_mut(2) {
        if let [wire, device] = pair {
            device.comparisons.push(Comparison::new(device, wire, None));
        }
    }
    Ok(rows)
}

/// Compares remote memory with messages of the same device. The target is 0.97 of the rate of
/// messages. score-wires alternates both every 40 ms, because the hypervisor moves the two virtual
/// processors within seconds, which changes all rates.
fn remote_memory(bench: &Bench) -> BenchOutcome {
    const TARGET_VS_MESSAGES: f64 = 0.97;
    let cores = cores_arg(bench);
    let mut results = Vec::new();
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
        let mut all_samples = vec![[Vec::new(), Vec::new()]; contenders.len()];
        for round in 0..bench.round_count {
            bench.progress(&format!("ethernet remote memory, {name}"), round);
            for ((_, command_word), rates) in contenders.iter().zip(&mut all_samples) {
                let output =
                    score_wires(bench, &[command_word, "-mtu", mtu, "-cores", &cores, wire])?;
                let words = output.split_whitespace().skip(4).map(str::parse);
                let Ok([message_rate, rma_rate]) = <[_; 2]>::try_from(words.collect::<Vec<_>>())
                else {
                    return Err(format!(
                        "score-wires {command_word}: unexpected output {output:?}"
                    ));
                };
                let parse_error =
                    |_| format!("score-wires {command_word}: unexpected output {output:?}");
                rates[0].push(message_rate.map_err(parse_error)?);
                rates[1].push(rma_rate.map_err(parse_error)?);
            }
        }
        for ((contender, command_word), [message_rates, rma_rates]) in
            contenders.into_iter().zip(all_samples)
        {
            let command = format!("score-wires {command_word} -mtu {mtu} -cores {cores} {wire}");
            let row = |contender, rates| {
                BenchResult::new(
                    "ethernet remote memory",
                    name,
                    contender,
                    GBIT_PER_S,
                    rates,
                    &command,
                )
            };
            let (message_row, mut rma_row) =
                (row("messages", message_rates), row(contender, rma_rates));
            rma_row.comparisons.push(Comparison::new(
                &rma_row,
                &message_row,
                Some(TARGET_VS_MESSAGES),
            ));
            results.extend([message_row, rma_row]);
        }
    }
    Ok(results)
}

/// Compares two limited links with one limited link.
fn trunk(bench: &Bench) -> BenchOutcome {
    let cores = cores_arg(bench);
    let bandwidth_args = |links| {
        vec!["bandwidth", "-cores", &cores, "-rate", LINK_RATE_MBIT, "-links", links, "pm-udp"]
    };
    let contenders =
        [("device, 1 link", bandwidth_args("1")), ("device, 2 links", bandwidth_args("2"))];
    let mut rows = run_interleaved(
        bench,
        "ethernet trunk",
        &format!("{LINK_RATE_MBIT} Mbit/s each"),
        &contenders,
    )?;
    if let [one_link, two_links] = &mut rows[..] {
        two_links.comparisons.push(Comparison::new(two_links, one_link, Some(1.9)));
    }
    Ok(rows)
}

/// Measures the time that composite adds to a message over shared memory.
fn composite(bench: &Bench) -> BenchOutcome {
    let cores = cores_arg(bench);
    let words = ["composite", "-cores", &cores];
    let cases = ["one way", "one thread, send and receive"];
    let mut all_samples = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 0..bench.round_count {
        bench.progress("cost of composite", round);
        let output = score_wires(bench, &words)?;
        for (prefix, samples) in ["plain ", "composite "].into_iter().zip(&mut all_samples) {
            let line = output.lines().find_map(|line| line.strip_prefix(prefix));
            let values: Vec<f64> = line
                .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
                .unwrap_or_default();
            let [median, _, single_thread] = values[..] else {
                return Err(format!("score-wires composite: unexpected output {output:?}"));
            };
            samples[0].push(median);
            samples[1].push(single_thread);
        }
    }
    let command = format!("score-wires {}", words.join(" "));
    let [plain, composite] = all_samples;
    let mut rows = Vec::new();
    for ((case, plain), composite) in cases.into_iter().zip(plain).zip(composite) {
        let added = composite.iter().zip(&plain).map(|(with, without)| with - without).collect();
        let row = |contender, samples| {
            BenchResult::new(
                "composite over shmem",
                case,
                contender,
                ("ns", Direction::LowerIsBetter),
                samples,
                &command,
            )
        };
        rows.extend([row("plain", plain), row("composite", composite)]);
        rows.push(BenchResult { target: Some(5.0), ..row("composite adds", added) });
    }
    Ok(rows)
}
