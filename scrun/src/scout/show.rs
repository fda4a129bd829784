//! What many hosts print, in few sections: equal output of neighbours is shown once, under the
//! names of all of them (scout(1)). No I/O here.
//!
//! What a host prints is kept until its command has ended, so that it can be compared; when it is
//! more than that, it is shown as it comes, under the name of the host and an asterisk.

use super::names;
use score_proto::message::{JobEnd, NodeUsage, Stream};
use serde_json::json;
use std::collections::BTreeMap;

/// Bytes of a host's stream that are kept at least, if it does not go on (scout(1): 4 Kbytes).
const LEAST: usize = 4 * 1024;
/// The same at most.
const MOST: usize = 64 * 1024;
/// Bytes that are kept of all hosts together.
const TOGETHER: usize = 64 * 1024 * 1024;

/// Exit code for a host of which nothing has been heard.
const LOST: u8 = 1;

/// In which order hosts are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// That of the session; equal output of neighbours is merged.
    #[default]
    Merge,
    /// By what they have printed; all that is equal is merged.
    Sort,
    /// The same, backwards.
    Reverse,
    /// As it comes, nothing is merged.
    Arrival,
}

/// How output is shown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// In which order.
    pub order: Order,
    /// Objects for programs, one a line, instead of text.
    pub json: bool,
    /// Whether names are bold, on standard output and error.
    pub bold: [bool; 2],
}

/// One of the two streams.
#[derive(Debug)]
struct Side {
    /// What is kept, by host.
    kept: Vec<Vec<u8>>,
    /// Hosts that have printed more than is kept.
    flowing: Vec<bool>,
    /// The host under whose name the last line stands.
    last: Option<usize>,
    at_line_start: bool,
}

/// The output of one command on all hosts.
#[derive(Debug)]
pub struct Show {
    hosts: Vec<String>,
    manner: Manner,
    limit: usize,
    sides: [Side; 2],
}

impl Show {
    /// Nothing has been printed yet.
    pub fn new(hosts: Vec<String>, manner: Manner) -> Self {
        let side = || Side {
            kept: vec![Vec::new(); hosts.len()],
            flowing: vec![manner.order == Order::Arrival; hosts.len()],
            last: None,
            at_line_start: true,
        };
        let limit = (TOGETHER / hosts.len().max(1) / 2).clamp(LEAST, MOST);
        Self { sides: [side(), side()], hosts, manner, limit }
    }

    /// Whether all of it goes to standard output.
    pub fn is_for_programs(&self) -> bool {
        self.manner.json
    }

    /// A host has printed something: what is to be written now, unless it is kept.
    pub fn take(&mut self, host: u32, stream: Stream, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let (host, index) = (host as usize, index(stream));
        let side = &mut self.sides[index];
        let (kept, flowing) = (side.kept.get_mut(host)?, side.flowing.get_mut(host)?);
        if !*flowing && kept.len() + bytes.len() <= self.limit {
            kept.extend_from_slice(&bytes);
            return None;
        }
        *flowing = true;
        let mut text = std::mem::take(kept);
        text.extend_from_slice(&bytes);
        let mut out = Vec::new();
        let is_new = side.last.replace(host) != Some(host);
        self.section(index, &[host], is_new.then_some("*"), &text, &mut out);
        Some(out)
    }

    /// A section, with a heading if there is a mark for it.
    fn section(
        &mut self,
        index: usize,
        hosts: &[usize],
        mark: Option<&str>,
        text: &[u8],
        out: &mut Vec<u8>,
    ) {
        if self.manner.json {
            let stream = ["stdout", "stderr"][index];
            let text = String::from_utf8_lossy(text);
            let whole = !hosts.iter().any(|host| self.sides[index].flowing[*host]);
            let hosts: Vec<&str> = hosts.iter().map(|host| self.hosts[*host].as_str()).collect();
            let line = json!({ "hosts": hosts, "stream": stream, "whole": whole, "text": text });
            out.extend_from_slice(format!("{line}\n").as_bytes());
            return;
        }
        if let Some(mark) = mark {
            let line_start = if self.sides[index].at_line_start { "" } else { "\n" };
            let names = names::joined(hosts.iter().map(|host| self.hosts[*host].as_str()));
            let mark = if self.manner.order == Order::Arrival { "" } else { mark };
            let (bold, plain) =
                if self.manner.bold[index] { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
            let heading = format!("{line_start}{bold}{names}{mark}:{plain}\n");
            out.extend_from_slice(heading.as_bytes());
        }
        out.extend_from_slice(text);
        self.sides[index].at_line_start = out.last() == Some(&b'\n');
    }

    /// The command has ended everywhere, or nothing more can come: what was kept, for both
    /// streams. `end` then has the exit code of scout. `reader_gone`: a death of SIGPIPE is no
    /// news.
    pub fn finish(&mut self, end: Option<&mut JobEnd>, reader_gone: bool) -> [Vec<u8>; 2] {
        let mut out = [self.rest(0), self.rest(1)];
        if self.manner.json {
            // Programs read one stream.
            let errors = std::mem::take(&mut out[1]);
            out[0].extend_from_slice(&errors);
        }
        if let Some(end) = end {
            let codes = self.codes(&end.usage);
            let highest = codes.iter().map(|code| code.unwrap_or(LOST)).max().unwrap_or(0);
            // A code of another part of the job, which has been told.
            end.code = if highest == 0 { end.code } else { highest };
            self.tell_codes(&codes, reader_gone, &mut out);
        }
        out
    }

    fn rest(&mut self, index: usize) -> Vec<u8> {
        let kept = std::mem::take(&mut self.sides[index].kept);
        let mut order: Vec<usize> = (0..kept.len()).collect();
        match self.manner.order {
            Order::Merge | Order::Arrival => {}
            Order::Sort => order.sort_by(|one, other| kept[*one].cmp(&kept[*other])),
            Order::Reverse => order.sort_by(|one, other| kept[*other].cmp(&kept[*one])),
        }
        let mut out = Vec::new();
        for group in order.chunk_by(|one, other| kept[*one] == kept[*other]) {
            let text = kept[group[0]].clone();
            if !text.is_empty() {
                self.section(index, group, Some(""), &text, &mut out);
            }
        }
        out
    }

    /// What the command gave on each host; None where nobody knows.
    fn codes(&self, usage: &[NodeUsage]) -> Vec<Option<u8>> {
        let command = usage.iter().map(|usage| usage.element).max().unwrap_or(0);
        let mut codes = vec![None; self.hosts.len()];
        for usage in usage.iter().filter(|usage| usage.element == command) {
            if let Some(code) = codes.get_mut(usage.node as usize) {
                *code = Some(usage.code);
            }
        }
        codes
    }

    fn tell_codes(&self, codes: &[Option<u8>], reader_gone: bool, out: &mut [Vec<u8>; 2]) {
        let mut hosts: BTreeMap<Option<u8>, Vec<&str>> = BTreeMap::new();
        for (host, code) in self.hosts.iter().zip(codes) {
            hosts.entry(*code).or_default().push(host);
        }
        for (code, hosts) in hosts {
            if self.manner.json {
                let line = json!({ "hosts": hosts, "code": code });
                out[0].extend_from_slice(format!("{line}\n").as_bytes());
                continue;
            }
            let quiet = code == Some(0) || (reader_gone && code == Some(141));
            if !quiet {
                let line_start = if self.sides[1].at_line_start { "" } else { "\n" };
                let hosts = names::joined(hosts);
                let line = match code {
                    Some(code @ 129..=192) => {
                        format!("exit code {code} (signal {}) on {hosts}", code - 128)
                    }
                    Some(code) => format!("exit code {code} on {hosts}"),
                    None => format!("no exit code from {hosts}"),
                };
                out[1].extend_from_slice(format!("{line_start}scout: {line}\n").as_bytes());
            }
        }
    }
}

fn index(stream: Stream) -> usize {
    usize::from(stream == Stream::Stderr)
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
