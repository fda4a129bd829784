//! The output of `stat` on standard error when the job has ended (manual, scrun(1)).

use crate::options::Statistics;
use score_proto::ids::JobId;
use score_proto::message::{JobEnd, NodeUsage};
use std::fmt::Write;

/// The lines of the report, with their newlines. Empty if no statistics are requested.
pub fn report(mode: Statistics, job: JobId, names: &[Vec<String>], end: &JobEnd) -> String {
    let mut out = String::new();
    if mode == Statistics::Off {
        return out;
    }
    let sum =
        |field: fn(&NodeUsage) -> u64| end.usage.iter().map(field).fold(0, u64::saturating_add);
    let peak = end.usage.iter().map(|usage| usage.max_rss_kib).max().unwrap_or(0);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "scrun: job {job}: {} processes, {} s elapsed, {} s user, {} s system, \
         {peak} KiB largest process, exit code {}",
        end.usage.len(),
        seconds(end.elapsed_ns),
        seconds(sum(|usage| usage.user_ns)),
        seconds(sum(|usage| usage.system_ns)),
        end.code
    );
    let (sent, received) = (sum(|usage| usage.sent), sum(|usage| usage.received));
    if sent > 0 || received > 0 {
        let _ = writeln!(
            out,
            "scrun: job {job}: {sent} messages ({} bytes) sent, {received} ({} bytes) received",
            sum(|usage| usage.sent_bytes),
            sum(|usage| usage.received_bytes)
        );
    }
    if mode == Statistics::Detail {
        let _ = writeln!(
            out,
            "scrun: node      user s    system s   busy    peak KiB        sent      bytes sent    \
             received  bytes received  code  program"
        );
        let mut usage: Vec<&NodeUsage> = end.usage.iter().collect();
        usage.sort_by_key(|usage| (usage.stage, usage.element, usage.node));
        for node in usage {
            let name = names
                .get(node.stage as usize)
                .and_then(|stage| stage.get(node.element.index()))
                .map_or("?", String::as_str);
            let _ = writeln!(
                out,
                "scrun: {:>4} {:>11} {:>11} {:>6} {:>11} {:>11} {:>15} {:>11} {:>15} {:>5}  {name}",
                node.node,
                seconds(node.user_ns),
                seconds(node.system_ns),
                node.busy_permille.map_or_else(|| "-".to_owned(), percent),
                node.max_rss_kib,
                node.sent,
                node.sent_bytes,
                node.received,
                node.received_bytes,
                node.code
            );
        }
    }
    out
}

fn seconds(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000)
}

fn percent(permille: u16) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::ElementIndex;

    #[test]
    fn the_summary_adds_up_and_the_detail_names_every_node() {
        let usage = |element, node| NodeUsage {
            element: ElementIndex(element),
            stage: 0,
            node,
            user_ns: 1_500_000_000,
            system_ns: 250_000_000,
            max_rss_kib: 100 + u64::from(node),
            code: 3,
            sent: 2,
            sent_bytes: 16,
            received: 1,
            received_bytes: 8,
            busy_permille: (node == 1).then_some(421),
        };
        let end =
            JobEnd { code: 3, usage: vec![usage(0, 1), usage(0, 0)], elapsed_ns: 2_001_999_999 };
        let names = vec![vec!["prog".to_owned()]];
        assert_eq!(report(Statistics::Off, JobId(7), &names, &end), "");
        assert_eq!(
            report(Statistics::Summary, JobId(7), &names, &end),
            "scrun: job 7: 2 processes, 2.001 s elapsed, 3.000 s user, 0.500 s system, \
             101 KiB largest process, exit code 3\n\
             scrun: job 7: 4 messages (32 bytes) sent, 2 (16 bytes) received\n"
        );
        let detail = report(Statistics::Detail, JobId(7), &names, &end);
        let lines: Vec<&str> = detail.lines().collect();
        assert_eq!(lines.len(), 5);
        let words: Vec<&str> = lines[3].split_whitespace().collect();
        let expected =
            ["scrun:", "0", "1.500", "0.250", "-", "100", "2", "16", "1", "8", "3", "prog"];
        assert_eq!(words, expected);
        assert!(lines[4].starts_with("scrun:    1") && lines[4].contains(" 42.1% "));
        let end_of = |line: &str, word: &str| line.find(word).map(|index| index + word.len());
        for (title, value) in [("system s", "0.250"), ("peak KiB", "100"), ("program", "prog")] {
            let shift = if title == "program" { 3 } else { 0 };
            assert_eq!(end_of(lines[2], title), end_of(lines[3], value).map(|end| end + shift));
        }
    }
}
