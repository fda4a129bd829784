//! The behaviour of scrun towards a debugger that uses MPIR, as a pure state machine. It has no
//! sockets, and no memory that a debugger reads.
//!
//! A debugger that starts scrun sets `MPIR_being_debugged` before the job is submitted. The
//! processes of each stage are then held before their first instruction, until the debugger has
//! read the table. A debugger that attaches later sets the flag later. This debugger finds the
//! processes of the running stage in the table, and the processes of later stages are held.

use score_mpir::{CompleteTable, TableBuilder};
use score_proto::job_control::ProcessBlock;
use score_proto::message::DebuggerRequest;

/// See the [module](self).
#[derive(Debug)]
pub struct Starter {
    /// Number of parallel processes of each stage.
    elements: Vec<usize>,
    /// Number of nodes of each parallel process, once the job has been accepted.
    nodes: Option<u32>,
    service: Service,
    /// The process id of the tracer of this process, or 0.
    tracer: u32,
    builder: Option<TableBuilder>,
}

/// The state of service for the debugger that has set the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    /// The flag is not set.
    Idle,
    /// The debugger waits for the table. scrun requests it when the job has been accepted.
    AwaitsJob,
    /// The debugger waits for the table, which scrun has requested, and for its servers.
    AwaitsTable,
    /// The debugger has read the table.
    Shown,
}

/// The result of one check of the flag.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LookResult {
    /// Requests to the job.
    pub requests: Vec<DebuggerRequest>,
    /// The debugger has left without resetting the flag, so the caller must reset it.
    pub reset_flag: bool,
}

impl Starter {
    /// A starter for a job whose stages have these numbers of parallel processes. `is_debugged`
    /// is true if the debugger that started this process has set the flag. The job's stages are
    /// then held.
    pub fn new(elements: Vec<usize>, is_debugged: bool, tracer: u32) -> Self {
        Self {
            elements,
            nodes: None,
            service: if is_debugged { Service::AwaitsTable } else { Service::Idle },
            tracer,
            builder: None,
        }
    }

    /// Whether this process is traced. The flag may then change without an event.
    pub fn is_traced(&self) -> bool {
        self.tracer != 0
    }

    /// Called when the job has been accepted. Returns requests to the job.
    pub fn on_accepted(&mut self, nodes: u32) -> Vec<DebuggerRequest> {
        self.nodes = Some(nodes);
        match self.service {
            Service::AwaitsJob => self.request_table(),
            Service::Idle | Service::AwaitsTable | Service::Shown => Vec::new(),
        }
    }

    /// Handles the current values of the flag and the tracer.
    pub fn on_look(&mut self, is_flag_set: bool, tracer: u32) -> LookResult {
        let last_tracer = std::mem::replace(&mut self.tracer, tracer);
        if !is_flag_set {
            return LookResult { requests: self.stop_serving(), reset_flag: false };
        }
        let has_new_tracer = tracer != last_tracer && tracer != 0 && last_tracer != 0;
        if self.service != Service::Idle && !has_new_tracer {
            // A debugger that attaches later sets the flag again.
            let reset_flag = tracer == 0 && self.service == Service::Shown;
            let requests = if reset_flag { self.stop_serving() } else { Vec::new() };
            return LookResult { requests, reset_flag };
        }
        LookResult { requests: self.request_table(), reset_flag: false }
    }

    fn request_table(&mut self) -> Vec<DebuggerRequest> {
        if self.nodes.is_none() {
            self.service = Service::AwaitsJob;
            return Vec::new();
        }
        self.service = Service::AwaitsTable;
        vec![DebuggerRequest::HoldStages(true), DebuggerRequest::ListProcesses]
    }

    fn stop_serving(&mut self) -> Vec<DebuggerRequest> {
        match std::mem::replace(&mut self.service, Service::Idle) {
            Service::AwaitsTable | Service::Shown if self.nodes.is_some() => {
                vec![DebuggerRequest::HoldStages(false)]
            }
            _ => Vec::new(),
        }
    }

    /// Handles a list of some processes of the job. Returns the table if it is complete.
    pub fn on_processes(
        &mut self,
        stage: u32,
        host_name: &str,
        block: &ProcessBlock,
    ) -> Option<CompleteTable> {
        if self.builder.as_ref().is_none_or(|builder| builder.stage() != stage) {
            let elements = *self.elements.get(stage as usize)?;
            self.builder = Some(TableBuilder::new(stage, elements, self.nodes? as usize));
        }
        let builder = self.builder.as_mut()?;
        builder.add(host_name, block);
        self.builder.take_if(|builder| builder.is_complete())?.finish()
    }

    /// Called when the debugger has read the table.
    pub fn on_shown(&mut self) {
        if self.service == Service::AwaitsTable {
            self.service = Service::Shown;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::{ElementIndex, JobHostId};

    const LIST: [DebuggerRequest; 2] =
        [DebuggerRequest::HoldStages(true), DebuggerRequest::ListProcesses];

    fn block(element: u32, first_node: u32, pids: &[u32]) -> ProcessBlock {
        ProcessBlock {
            host: JobHostId(0),
            element: ElementIndex(element),
            first_node,
            pids: pids.to_vec(),
        }
    }

    #[test]
    fn a_flag_is_served_once_until_it_is_reset() {
        let mut starter = Starter::new(vec![1], false, 0);
        starter.on_accepted(1);
        assert_eq!(starter.on_look(false, 5), LookResult::default());
        let list = LookResult { requests: LIST.to_vec(), reset_flag: false };
        assert_eq!(starter.on_look(true, 5), list);
        assert_eq!(starter.on_look(true, 5), LookResult::default());
        assert_eq!(starter.on_processes(5, "a", &block(0, 0, &[1])), None, "there is no stage 5");
        assert!(starter.on_processes(0, "a", &block(0, 0, &[1])).is_some());
        starter.on_shown();
        assert_eq!(starter.on_look(true, 5), LookResult::default());
        let stopped = vec![DebuggerRequest::HoldStages(false)];
        assert_eq!(starter.on_look(false, 5).requests, stopped);
        assert_eq!(starter.on_look(true, 5), list, "set again");
    }

    #[test]
    fn a_flag_of_a_dead_debugger_is_reset_after_the_table_was_published() {
        let mut starter = Starter::new(vec![1], false, 0);
        starter.on_accepted(1);
        starter.on_look(true, 5);
        assert!(!starter.on_look(true, 0).reset_flag, "it may read the table later");
        assert!(starter.on_processes(0, "a", &block(0, 0, &[1])).is_some());
        starter.on_shown();
        let requests = vec![DebuggerRequest::HoldStages(false)];
        assert_eq!(starter.on_look(true, 0), LookResult { requests, reset_flag: true });
        // The next debugger attaches.
        assert_eq!(starter.on_look(true, 6).requests, LIST);
        assert!(starter.on_processes(0, "a", &block(0, 0, &[1])).is_some());
        starter.on_shown();
        assert_eq!(starter.on_look(true, 8).requests, LIST, "another one follows at once");
    }

    #[test]
    fn a_flag_that_is_set_before_the_job_is_accepted_is_served_after_that() {
        let mut starter = Starter::new(vec![1], false, 0);
        assert_eq!(starter.on_look(true, 5), LookResult::default());
        assert_eq!(starter.on_accepted(1), LIST);
        let mut starter = Starter::new(vec![1], false, 0);
        starter.on_look(true, 5);
        starter.on_look(false, 5);
        assert_eq!(starter.on_accepted(1), []);
    }
}
