//! Carrying out what is decided for one parallel process.

use std::os::fd::{AsFd, OwnedFd};

use mio::Registry;
use score_proto::message::{Level, NetworkSet, Reply, Welcome};

use super::files;
use super::output::Purpose;
use super::work::{MOST_FLUSHES, Work};
use crate::job::code;
use crate::job::element::Step;
use crate::job::life::{At, Event, Job};
use crate::link::Link;
use crate::sys::process;

impl Work {
    pub(super) fn step(
        &mut self,
        element: u32,
        step: Step,
        events: &mut Vec<Event>,
        link: &mut Link,
        registry: &Registry,
    ) {
        match step {
            Step::End => {
                for (at, pid) in &self.pids {
                    if at.element == element {
                        process::kill_group(*pid, libc::SIGKILL);
                    }
                }
                events.extend(self.starts.cancel(element).into_iter().map(Event::Skipped));
            }
            Step::Notice(level, text) => self.notice(level, text, link),
            Step::Welcome => {
                if let Err(reason) = self.welcome(element) {
                    events.push(Event::Broken(element, reason));
                }
            }
            Step::Refuse(node, text) => {
                let at = At { element, node };
                self.answer(at, &Reply::Refused(text), Vec::new(), link, registry);
            }
            Step::Done(node, id, error) => {
                let at = At { element, node };
                self.answer(at, &Reply::Done { id, error }, Vec::new(), link, registry);
            }
            Step::Flush(node, id) => {
                let at = At { element, node };
                let count = self.flushing.entry(at).or_default();
                *count += 1;
                if *count > MOST_FLUSHES {
                    let what = format!("it has more than {MOST_FLUSHES} sc_flush() under way");
                    events.push(Event::Garbage(at, what));
                } else {
                    let stage = self.job.as_ref().map_or(0, Job::stage);
                    self.outputs.drain(Purpose::Flush(element, node, id), Some((stage, element)));
                }
            }
            Step::Broadcast(node, id, signal) => {
                for (at, pid) in &self.pids {
                    if at.element == element && signal != 0 {
                        process::kill_group(*pid, signal);
                    }
                }
                let at = At { element, node };
                self.answer(at, &Reply::Done { id, error: 0 }, Vec::new(), link, registry);
            }
            Step::Inspect(node, signal, display) => {
                let text = self.inspection(At { element, node }, signal, display);
                self.notice(Level::Error, text, link);
            }
        }
    }

    pub(super) fn answer(
        &mut self,
        at: At,
        reply: &Reply,
        descriptors: Vec<OwnedFd>,
        link: &mut Link,
        registry: &Registry,
    ) {
        if !self.controls.answer(at, reply, descriptors) {
            let what = "it does not read the answers to its calls".to_owned();
            self.tell_job(Event::Garbage(at, what), link, registry);
        }
    }

    fn welcome(&mut self, element: u32) -> Result<(), String> {
        let Some(job) = &self.job else { return Ok(()) };
        let spec = job.spec();
        let nodes = spec.nodes();
        let processes = spec.stages[job.stage()].elements.len() * nodes as usize;
        let oversubscribed = processes > super::processors();
        self.segments.create(element, nodes, oversubscribed, super::monotonic_ns())?;
        for node in 0..nodes {
            let at = At { element, node };
            let seat = spec.seat(node);
            let welcome = Welcome {
                job: self.ground.job,
                area: node,
                self_node: node,
                num_node: nodes,
                self_proc: seat.process,
                num_proc: seat.procs,
                self_host: seat.host,
                num_host: spec.hosts.len() as u32,
                networks: if nodes > 1 { vec![NetworkSet::one_host(nodes)] } else { Vec::new() },
                options: spec.options.clone(),
                dir: self.ground.directory.to_string_lossy().into_owned(),
            };
            let descriptors = self.segments.descriptors(element, node)?;
            self.controls.answer(at, &Reply::Welcome(Box::new(welcome)), descriptors);
        }
        Ok(())
    }

    fn inspection(&self, at: At, signal: i32, display: Option<String>) -> String {
        let host = files::host_name();
        let inner = self.pids.get(&at).copied().unwrap_or(0);
        let pid = match &self.ground.outer_proc {
            Some(proc_dir) => process::outer_pid(proc_dir.as_fd(), inner, super::own_namespace()),
            None => Some(inner),
        };
        let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let signal = code::signal_name(signal);
        let wanted = display.map_or_else(String::new, |display| format!(" on display {display}"));
        format!(
            "node {} on host {host} (process {pid}) called sc_inspectme() for {signal}{wanted}: its \
             parallel process is ended. To look at such a process while it runs: gdb -p {pid}",
            at.node
        )
    }
}
