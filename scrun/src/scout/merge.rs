//! Merges the output of many hosts. Equal output of consecutive hosts is shown once, under their
//! names (scout(1)). There is no I/O here.
//!
//! The output of a host is buffered until its command has ended, so that it can be compared. Output
//! that exceeds the buffer is written at once, under the name of the host and an asterisk.

use super::host_ranges;
use score_proto::exit_code::EXIT_HOST_LOST;
use score_proto::ids::JobHostId;
use score_proto::message::{JobEnd, NodeUsage, Stream};
use serde_json::json;
use std::collections::BTreeMap;

/// Lower limit of the buffer for one stream of one host, in bytes (scout(1): 4 Kbytes).
const MIN_HOST_BUFFER: usize = 4 * 1024;
/// Upper limit of the buffer for one stream of one host, in bytes.
const MAX_HOST_BUFFER: usize = 64 * 1024;
/// Bytes that are buffered for all hosts together.
const MAX_TOTAL_BUFFER: usize = 64 * 1024 * 1024;

/// The order in which hosts are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The order of the session. Equal output of consecutive hosts is merged.
    #[default]
    Merge,
    /// Sorted by output. All equal output is merged.
    Sort,
    /// Sorted by output, in reverse order.
    Reverse,
    /// The order of arrival, without merging.
    Arrival,
}

/// The format of the output.
#[derive(Debug, Clone, Copy, Default)]
pub struct OutputFormat {
    /// Order of the hosts.
    pub order: Order,
    /// JSON objects for programs, one per line, instead of text.
    pub json: bool,
    /// Whether host names are bold, on standard output and on standard error.
    pub bold: [bool; 2],
}

/// The state of one of the two streams.
#[derive(Debug)]
struct StreamState {
    /// Buffered bytes, by host.
    buffered: Vec<Vec<u8>>,
    /// Whether a host has exceeded its buffer, by host.
    passthrough: Vec<bool>,
    /// The host of the last heading.
    last_host: Option<usize>,
    at_line_start: bool,
}

/// The output of one command on all hosts.
#[derive(Debug)]
pub struct OutputMerger {
    hosts: Vec<String>,
    format: OutputFormat,
    buffer_limit: usize,
    streams: [StreamState; 2],
}

impl OutputMerger {
    /// A merger without any output.
    pub fn new(hosts: Vec<String>, format: OutputFormat) -> Self {
        let new_stream = || StreamState {
            buffered: vec![Vec::new(); hosts.len()],
            passthrough: vec![format.order == Order::Arrival; hosts.len()],
            last_host: None,
            at_line_start: true,
        };
        let buffer_limit =
            (MAX_TOTAL_BUFFER / hosts.len().max(1) / 2).clamp(MIN_HOST_BUFFER, MAX_HOST_BUFFER);
        Self { streams: [new_stream(), new_stream()], hosts, format, buffer_limit }
    }

    /// Whether the output is for programs. Both streams then go to standard output.
    pub fn is_for_programs(&self) -> bool {
        self.format.json
    }

    /// Adds output of a host. Returns the bytes to write now; `None` if the output is buffered.
    pub fn push_output(
        &mut self,
        host: JobHostId,
        stream: Stream,
        bytes: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let (host, index) = (host.index(), index(stream));
        let state = &mut self.streams[index];
        let (buffered, passthrough) =
            (state.buffered.get_mut(host)?, state.passthrough.get_mut(host)?);
        if !*passthrough && buffered.len() + bytes.len() <= self.buffer_limit {
            buffered.extend_from_slice(&bytes);
            return None;
        }
        *passthrough = true;
        let mut text = std::mem::take(buffered);
        text.extend_from_slice(&bytes);
        let mut out = Vec::new();
        let is_new = state.last_host.replace(host) != Some(host);
        self.write_section(index, &[host], is_new.then_some("*"), &text, &mut out);
        Some(out)
    }

    /// Writes a section, with a heading if `mark` is given.
    fn write_section(
        &mut self,
        index: usize,
        hosts: &[usize],
        mark: Option<&str>,
        text: &[u8],
        out: &mut Vec<u8>,
    ) {
        if self.format.json {
            let stream = ["stdout", "stderr"][index];
            let text = String::from_utf8_lossy(text);
            let whole = !hosts.iter().any(|host| self.streams[index].passthrough[*host]);
            let hosts: Vec<&str> = hosts.iter().map(|host| self.hosts[*host].as_str()).collect();
            let line = json!({ "hosts": hosts, "stream": stream, "whole": whole, "text": text });
            out.extend_from_slice(format!("{line}\n").as_bytes());
            return;
        }
        if let Some(mark) = mark {
            let line_start = if self.streams[index].at_line_start { "" } else { "\n" };
            let names = host_ranges::compress(hosts.iter().map(|host| self.hosts[*host].as_str()));
            let mark = if self.format.order == Order::Arrival { "" } else { mark };
            let (bold, plain) =
                if self.format.bold[index] { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
            let heading = format!("{line_start}{bold}{names}{mark}:{plain}\n");
            out.extend_from_slice(heading.as_bytes());
        }
        out.extend_from_slice(text);
        self.streams[index].at_line_start = out.last() == Some(&b'\n');
    }

    /// Returns the buffered output of both streams, after the command has ended on all hosts or the
    /// daemon is lost. If `end` is given, stores scout's exit code in it. If `reader_closed` is
    /// set, a death by SIGPIPE is not reported.
    pub fn finish(&mut self, end: Option<&mut JobEnd>, reader_closed: bool) -> [Vec<u8>; 2] {
        let mut out = [self.flush_remaining(0), self.flush_remaining(1)];
        if self.format.json {
            // In JSON format, the reader reads one stream only.
            let errors = std::mem::take(&mut out[1]);
            out[0].extend_from_slice(&errors);
        }
        if let Some(end) = end {
            let codes = self.exit_codes(&end.usage);
            let max_code =
                codes.iter().map(|code| code.unwrap_or(EXIT_HOST_LOST)).max().unwrap_or(0);
            // If the command succeeded on all hosts, the code comes from another element, whose
            // failure has been reported.
            end.code = if max_code == 0 { end.code } else { max_code };
            self.report_exit_codes(&codes, reader_closed, &mut out);
        }
        out
    }

    fn flush_remaining(&mut self, index: usize) -> Vec<u8> {
        let buffered = std::mem::take(&mut self.streams[index].buffered);
        let mut order: Vec<usize> = (0..buffered.len()).collect();
        match self.format.order {
            Order::Merge | Order::Arrival => {}
            Order::Sort => order.sort_by(|one, other| buffered[*one].cmp(&buffered[*other])),
            Order::Reverse => order.sort_by(|one, other| buffered[*other].cmp(&buffered[*one])),
        }
        let mut out = Vec::new();
        for group in order.chunk_by(|one, other| buffered[*one] == buffered[*other]) {
            let text = buffered[group[0]].clone();
            if !text.is_empty() {
                self.write_section(index, group, Some(""), &text, &mut out);
            }
        }
        out
    }

    /// The exit code of the command on each host; `None` if it is unknown.
    fn exit_codes(&self, usage: &[NodeUsage]) -> Vec<Option<u8>> {
        let last_element = usage.iter().map(|usage| usage.element).max().unwrap_or_default();
        let mut codes = vec![None; self.hosts.len()];
        for usage in usage.iter().filter(|usage| usage.element == last_element) {
            if let Some(code) = codes.get_mut(usage.node as usize) {
                *code = Some(usage.code);
            }
        }
        codes
    }

    fn report_exit_codes(&self, codes: &[Option<u8>], reader_closed: bool, out: &mut [Vec<u8>; 2]) {
        let mut hosts: BTreeMap<Option<u8>, Vec<&str>> = BTreeMap::new();
        for (host, code) in self.hosts.iter().zip(codes) {
            hosts.entry(*code).or_default().push(host);
        }
        for (code, hosts) in hosts {
            if self.format.json {
                let line = json!({ "hosts": hosts, "code": code });
                out[0].extend_from_slice(format!("{line}\n").as_bytes());
                continue;
            }
            let is_expected = code == Some(0) || (reader_closed && code == Some(141));
            if !is_expected {
                let line_start = if self.streams[1].at_line_start { "" } else { "\n" };
                let hosts = host_ranges::compress(hosts);
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
#[path = "merge_tests.rs"]
mod tests;
