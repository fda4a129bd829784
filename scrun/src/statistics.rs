//! What `stat` prints on standard error when the job has ended (manual, scrun(1)).

use crate::options::Statistics;
use score_proto::message::{JobEnd, NodeUsage};
use std::fmt::Write;

/// The lines, with their newlines; empty when nothing was asked for.
pub fn report(wanted: Statistics, job: u32, names: &[Vec<String>], end: &JobEnd) -> String {
    let mut out = String::new();
    if wanted == Statistics::Off {
        return out;
    }
    let sum = |part: fn(&NodeUsage) -> u64| end.usage.iter().map(part).fold(0, u64::saturating_add);
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
    if wanted == Statistics::Detail {
        let _ = writeln!(out, "scrun: node      user s    system s    peak KiB  code  program");
        let mut usage: Vec<&NodeUsage> = end.usage.iter().collect();
        usage.sort_by_key(|usage| (usage.stage, usage.element, usage.node));
        for node in usage {
            let name = names
                .get(node.stage as usize)
                .and_then(|stage| stage.get(node.element as usize))
                .map_or("?", String::as_str);
            let _ = writeln!(
                out,
                "scrun: {:>4} {:>11} {:>11} {:>11} {:>5}  {name}",
                node.node,
                seconds(node.user_ns),
                seconds(node.system_ns),
                node.max_rss_kib,
                node.code
            );
        }
    }
    out
}

fn seconds(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_adds_up_and_the_detail_names_every_node() {
        let usage = |element, node| NodeUsage {
            stage: 0,
            element,
            node,
            user_ns: 1_500_000_000,
            system_ns: 250_000_000,
            max_rss_kib: 100 + u64::from(node),
            code: 3,
        };
        let end =
            JobEnd { code: 3, usage: vec![usage(0, 1), usage(0, 0)], elapsed_ns: 2_001_999_999 };
        let names = vec![vec!["prog".to_owned()]];
        assert_eq!(report(Statistics::Off, 7, &names, &end), "");
        assert_eq!(
            report(Statistics::Summary, 7, &names, &end),
            "scrun: job 7: 2 processes, 2.001 s elapsed, 3.000 s user, 0.500 s system, \
             101 KiB largest process, exit code 3\n"
        );
        let detail = report(Statistics::Detail, 7, &names, &end);
        let lines: Vec<&str> = detail.lines().collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[2], "scrun:    0       1.500       0.250         100     3  prog");
        assert!(lines[3].starts_with("scrun:    1"));
    }
}
