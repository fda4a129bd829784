//! Tests of a service that does not answer. A sleeping process replaces it.

use std::os::unix::process::ExitStatusExt;
use std::process::Child;

use mio::{Poll, Waker};
use score_proto::frame;
use score_proto::ids::ElementIndex;

use super::*;

struct SilentService {
    poll: Poll,
    run_gate: RunGate,
    context: ShepherdContext,
    tool_service: ToolService,
    service_end: UnixStream,
    process: Child,
}

impl SilentService {
    fn start() -> Self {
        let poll = Poll::new().unwrap();
        let (own, service_end) = UnixStream::pair().unwrap();
        let process = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut socket = FramedSocket::new(own.into()).unwrap();
        socket.register(poll.registry(), Token(0)).unwrap();
        let (pid, purpose) = (process.id().cast_signed(), ServiceUse::Tools);
        let service = Some(RunningService { socket, pid, purpose, silent_since: None });
        let context = ShepherdContext {
            directory: PathBuf::from("/nonexistent"),
            program_folder: None,
            outer_proc: None,
            descriptor_limit: libc::rlimit { rlim_cur: 1024, rlim_max: 1024 },
            null: fs::File::open("/dev/null").unwrap(),
            cgroup_counters: Default::default(),
            multi_user: false,
            raw_client: None,
        };
        Self {
            run_gate: RunGate::new(Waker::new(poll.registry(), Token(1)).unwrap()),
            poll,
            context,
            tool_service: ToolService { service, ..ToolService::default() },
            service_end,
            process,
        }
    }

    fn serve(&mut self) -> Vec<ToolReport> {
        let mut processes = ProcessTable::default();
        let view = ServedJob { job_info: None, context: &self.context, processes: &mut processes };
        let tokens = (Token(0), Token(2));
        self.tool_service.serve(self.poll.registry(), tokens, &self.run_gate, view)
    }

    /// Sends a command whose deadline has passed.
    fn send_late_command(&mut self, id: u64) {
        let (id, nodes) = (CommandId(id), NodeSet::one(0));
        let command = ToolCommand { id, nodes: nodes.clone(), wait_ms: 0, body: Vec::new() };
        let process = ToolProcess { node: 0, pid: 1, faulting_thread: None };
        assert_eq!(
            self.tool_service.on_command(ElementIndex(0), command, nodes, vec![process]),
            None
        );
        let pending = self.tool_service.pending.get_mut(&(ElementIndex(0), id)).unwrap();
        pending.deadline -= ANSWER_GRACE;
    }

    /// Lets the time pass for which the service may be silent.
    fn pass_stuck_timeout(&mut self) {
        let service = self.tool_service.service.as_mut().unwrap();
        let since = service.silent_since.as_mut().expect("a command was not answered");
        *since -= STUCK_TIMEOUT;
    }
}

impl Drop for SilentService {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn failure_text(reports: &[ToolReport]) -> String {
    let [(ElementIndex::FIRST, ElementReport::ToolEvent(event))] = reports else {
        panic!("{reports:?}")
    };
    let EventBody::Answer(body) = &event.body else { panic!("{event:?}") };
    match ToolResult::decode(body).unwrap() {
        ToolResult::Failed(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_late_service_fails_commands_and_a_silent_one_is_killed_after_a_minute() {
    let mut service = SilentService::start();
    service.send_late_command(1);
    assert_eq!(failure_text(&service.serve()), "scored-toolctl does not answer in time");
    let begin = Instant::now();
    let stuck_at = service.tool_service.next_deadline().unwrap();
    assert!(stuck_at <= begin + STUCK_TIMEOUT && stuck_at > begin + STUCK_TIMEOUT / 2);
    // An answer that comes too late has no effect, but it shows that the service works.
    let mut bytes = Vec::new();
    let body = ToolResult::Failed("late".to_owned()).encode();
    let answer =
        ToolctlReport::Answer { element: ElementIndex(0), id: CommandId(1), node: 0, body };
    frame::encode(&answer, &mut bytes).unwrap();
    io::Write::write_all(&mut service.service_end, &bytes).unwrap();
    service.tool_service.mark_readable();
    assert_eq!(service.serve(), []);
    assert_eq!(service.tool_service.next_deadline(), None);
    assert_eq!(service.process.try_wait().unwrap(), None);

    service.send_late_command(2);
    assert_eq!(failure_text(&service.serve()), "scored-toolctl does not answer in time");
    service.pass_stuck_timeout();
    service.send_late_command(3);
    assert_eq!(failure_text(&service.serve()), "scored-toolctl does not answer");
    assert!(service.tool_service.service.is_none());
    assert_eq!(service.process.wait().unwrap().signal(), Some(libc::SIGKILL));
}
