//! Tests of single steps of a daemon with few jobs: destinations of messages, effects of a lost
//! link, watchers of a job, and sharing of the processors of one host.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use score_proto::ids::{ElementIndex, HostId, JobHostId, JobId, SessionJobId};
use score_proto::job_control::{
    HopOrder, HopReport, JobOrder, JobReport, JobStart, LocalRotation, Order, OutputReport,
    Placement, Remains, Report, ShepherdReport, StopCondition, SwitchOrder, SwitchReport,
    SwitchSeq,
};
use score_proto::message::{
    ElementSpec, HostSpec, JobRequest, JobSpec, OsBytes, ProgramKind, StageSpec, Stream,
};
use score_proto::observation::{IdleSummary, Metrics};
use score_proto::peer_message::{Incarnation, JobIncarnation};
use score_proto::server_message::{ConsoleAnswer, JobAnswer};

use super::{
    ClientJob, Effect, HostIdentity, Input, JobTag, Jobs, LinkId, LocalReport, LostHosts, NewJob,
    SessionKey,
};
use crate::cluster::{HostShare, MonotonicTime};
use crate::gang::GangConfig;
use crate::metrics_subscribers::Subscriber;

const FIRST: JobId = JobId(1);
const SECOND: JobId = JobId(2);
const PARENT_LINK: LinkId = LinkId(3);
const CLIENT_JOB: ClientJob = ClientJob { session_key: SessionKey(5), job: SessionJobId(1) };

fn at(milliseconds: u64) -> MonotonicTime {
    MonotonicTime::from_millis(milliseconds)
}

/// The daemon of host h0, which leads jobs on hosts of one slot each.
fn daemon() -> Jobs {
    let mut jobs = Jobs::new(None);
    jobs.set_identity(HostIdentity { name: "h0".to_owned(), incarnation: Incarnation(1) });
    let slots: BTreeMap<_, _> = (0..8).map(|host| (HostId(host), 1)).collect();
    jobs.set_gang(GangConfig::default(), slots);
    jobs
}

/// A placement on these hosts with one node each.
fn placement(hosts: &[u32]) -> Placement {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let hosts = hosts.iter().map(|host| (format!("h{host}"), Some((address, Incarnation(1))), 1));
    Placement::new(JobIncarnation(9), hosts.collect::<Vec<_>>())
}

fn tag(job: JobId) -> JobTag {
    JobTag { job, incarnation: JobIncarnation(9) }
}

fn new_job(job: JobId, hosts: &[u32]) -> NewJob {
    let word = || OsBytes(b"/bin/prog".to_vec());
    let element = ElementSpec::new(word(), vec![word()], ProgramKind::Plain);
    let host_spec = |host: &u32| HostSpec { name: format!("h{host}"), ..HostSpec::local(1) };
    let spec = JobSpec {
        hosts: hosts.iter().map(host_spec).collect(),
        stages: vec![StageSpec { elements: vec![element] }],
        directory: OsBytes(b"/".to_vec()),
        ..JobSpec::default()
    };
    NewJob {
        start: JobStart { job, secret: 1, spec, owner: None },
        placement: placement(hosts),
        client_job: CLIENT_JOB,
        allocations: hosts.iter().map(|host| HostShare { host: HostId(*host), procs: 1 }).collect(),
    }
}

/// The link to a host to which the daemon has connected.
fn link_to(host: usize) -> LinkId {
    LinkId(10 + host)
}

/// All effects. Links to all hosts to which the daemon connects are established.
fn effects(jobs: &mut Jobs, now: MonotonicTime) -> Vec<Effect> {
    let mut all = Vec::new();
    loop {
        let effects = jobs.take_effects(now);
        if effects.is_empty() {
            return all;
        }
        for effect in effects {
            match effect {
                Effect::Connect(connection, host) => {
                    let result = Ok(link_to(host.name[1..].parse().unwrap()));
                    jobs.on(Input::Connected { connection, result }, now);
                }
                other => all.push(other),
            }
        }
    }
}

fn step(jobs: &mut Jobs, input: Input, milliseconds: u64) -> Vec<Effect> {
    jobs.on(input, at(milliseconds));
    effects(jobs, at(milliseconds))
}

fn begin(jobs: &mut Jobs, job: JobId, hosts: &[u32]) -> Vec<Effect> {
    step(jobs, Input::Begin(Box::new(new_job(job, hosts))), 0)
}

fn local(job: JobId, report: JobReport) -> Input {
    Input::Local(job, LocalReport::Job(report))
}

fn orders(effects: &[Effect]) -> Vec<(LinkId, &HopOrder)> {
    let mut sent = Vec::new();
    for effect in effects {
        if let Effect::SendOrder(link, _, order) = effect {
            sent.push((*link, order));
        }
    }
    sent
}

fn reports(effects: &[Effect]) -> Vec<(LinkId, &HopReport)> {
    let mut sent = Vec::new();
    for effect in effects {
        if let Effect::SendReport(link, _, report) = effect {
            sent.push((*link, report));
        }
    }
    sent
}

fn switch_orders(effects: &[Effect]) -> Vec<(JobId, SwitchOrder)> {
    let order = |effect: &Effect| match effect {
        Effect::ToSwitchThread(job, order) => Some((*job, *order)),
        _ => None,
    };
    effects.iter().filter_map(order).collect()
}

/// The notices for the user.
fn notices(effects: &[Effect]) -> Vec<&str> {
    let mut texts = Vec::new();
    for effect in effects {
        if let Effect::ToClient(_, CLIENT_JOB, JobAnswer::Notice { text, .. }) = effect {
            texts.push(text.as_str());
        }
    }
    texts
}

fn aborted_here(effects: &[Effect]) -> Vec<JobId> {
    let job = |effect: &Effect| match effect {
        Effect::AbortHere(job) => Some(*job),
        _ => None,
    };
    effects.iter().filter_map(job).collect()
}

/// Kills a job that runs only on this host and whose process was not started.
fn kill(jobs: &mut Jobs, job: JobId, milliseconds: u64) -> Vec<Effect> {
    let mut all = step(jobs, Input::FromSession(job, JobRequest::Kill), milliseconds);
    all.extend(step(jobs, local(job, JobReport::Finished { elapsed_ns: 1 }), milliseconds));
    all
}

#[test]
fn a_session_key_converts_to_a_number_and_back() {
    assert_eq!((SessionKey(7).number(), SessionKey::from_number(7)), (7, Some(SessionKey(7))));
}

#[test]
fn a_job_begins_on_its_first_host_even_if_its_leader_is_another_host() {
    let mut jobs = daemon();
    assert!(jobs.is_empty() && jobs.uses_link(LinkId(99)), "a new link is for a job to come");
    let begun = begin(&mut jobs, FIRST, &[1, 2]);
    let sent = orders(&begun);
    assert!(sent.iter().all(|(link, _)| *link == link_to(1)), "{sent:?}");
    let [(_, HopOrder::SetPlacement(sent_placement)), (_, HopOrder::Tree(order))] = sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(sent_placement.self_host, JobHostId(0));
    assert!(matches!(order, Order::Job(JobOrder::StartJob(_))));
    assert!(!begun.iter().any(|effect| matches!(effect, Effect::Launch(_))));
    assert_eq!(jobs.led_links(FIRST).collect::<Vec<_>>(), [link_to(1)]);
    assert_eq!((jobs.uses_link(link_to(1)), jobs.uses_link(link_to(2))), (true, false));
    let begun = begin(&mut jobs, SECOND, &[0, 2]);
    assert!(orders(&begun).iter().all(|(link, _)| *link == link_to(2)));
    let launched = begun.iter().find_map(|effect| match effect {
        Effect::Launch(launch) => launch.client_job,
        _ => None,
    });
    assert_eq!(launched, Some(CLIENT_JOB));
    assert_eq!(jobs.led_links(SECOND).collect::<Vec<_>>(), [link_to(2)]);
    assert_eq!((jobs.led_job_ids(), jobs.parent_link(SECOND)), (vec![FIRST, SECOND], None));
    assert!(jobs.leads(FIRST) && !jobs.leads(JobId(3)) && !jobs.is_empty());
}

#[test]
fn the_user_is_notified_of_the_hosts_that_are_lost_with_a_link() {
    let text = |count: u32| {
        let mut jobs = daemon();
        let hosts: Vec<u32> = (1..=count).collect();
        begin(&mut jobs, FIRST, &hosts);
        let unrelated = step(&mut jobs, Input::LinkLost(link_to(7), "cut".to_owned()), 1);
        assert!(unrelated.is_empty(), "{unrelated:?}");
        let lost = step(&mut jobs, Input::LinkLost(link_to(1), "cut".to_owned()), 1);
        let effect = lost.iter().find_map(|effect| match effect {
            Effect::HostsLost(lost) => Some(lost),
            _ => None,
        });
        let LostHosts { job, hosts, names, remains } = effect.unwrap();
        assert_eq!((*job, hosts.clone(), names.len()), (FIRST, 0..count, count as usize));
        assert_eq!(*remains, Remains::Processes);
        notices(&lost)[0].to_owned()
    };
    let end = "Every process of the job is killed";
    assert_eq!(text(1), format!("host h1 is lost: cut. {end}"));
    let listed = "unreachable with it: h2, h3, h4, h5";
    assert_eq!(text(5), format!("host h1 is lost: cut; {listed}. {end}"));
    assert_eq!(text(6), format!("host h1 is lost: cut; unreachable with it: 5 hosts. {end}"));
}

#[test]
fn a_host_that_cannot_receive_orders_is_lost_to_its_job() {
    let mut jobs = daemon();
    jobs.on(Input::Begin(Box::new(new_job(FIRST, &[0, 1]))), at(0));
    let effects_before = jobs.take_effects(at(0));
    let [Effect::Connect(connection, _)] = effects_before[..] else { panic!("{effects_before:?}") };
    let result = Err("no route to h1".to_owned());
    let failed = step(&mut jobs, Input::Connected { connection, result }, 1);
    assert_eq!(notices(&failed), ["no route to h1"]);
    begin(&mut jobs, SECOND, &[0, 2]);
    let too_long = |job| Input::OrderTooLong(link_to(2), job);
    let wrong_tag = JobTag { job: SECOND, incarnation: JobIncarnation(8) };
    assert!(step(&mut jobs, too_long(wrong_tag), 1).is_empty());
    let failed = step(&mut jobs, too_long(tag(SECOND)), 1);
    let text = "arguments and environment are too long to be sent to other hosts";
    assert_eq!(notices(&failed), [text]);
}

/// The daemon of h0 takes part in a job that another host leads. The child of h0 is h1.
fn daemon_with_parent() -> Jobs {
    let mut jobs = daemon();
    let order = HopOrder::SetPlacement(placement(&[0, 1]));
    let entered = step(&mut jobs, Input::Order(PARENT_LINK, tag(FIRST), order), 0);
    assert!(matches!(orders(&entered)[..], [(link, HopOrder::SetPlacement(_))]
        if link == link_to(1)));
    assert_eq!(jobs.parent_link(FIRST), Some(PARENT_LINK));
    assert_eq!(
        [PARENT_LINK, link_to(1), link_to(2)].map(|link| jobs.uses_link(link)),
        [true, true, false]
    );
    assert!(!jobs.leads(FIRST) && !jobs.is_empty());
    assert_eq!(jobs.led_links(FIRST).count(), 0);
    jobs
}

#[test]
fn a_host_takes_part_only_in_jobs_that_were_placed_on_its_daemon() {
    let mut wrong_daemon = placement(&[0, 1]);
    wrong_daemon.hosts[0].incarnation = Some(Incarnation(2));
    let mut wrong_job = placement(&[0, 1]);
    wrong_job.job_incarnation = JobIncarnation(8);
    let mut wrong_nodes = placement(&[0, 1]);
    wrong_nodes.hosts[1].first_node = 5;
    for wrong in [wrong_daemon, wrong_job, wrong_nodes] {
        let mut jobs = daemon();
        let order = HopOrder::SetPlacement(wrong);
        let refused = step(&mut jobs, Input::Order(PARENT_LINK, tag(FIRST), order), 0);
        let refusals = reports(&refused);
        let is_refusal = matches!(refusals[..], [(PARENT_LINK, HopReport::UnknownJob { .. })]);
        assert!(is_refusal && jobs.is_empty(), "{refused:?}");
    }
}

#[test]
fn only_the_parent_of_a_job_orders_and_aborts_it() {
    let mut jobs = daemon_with_parent();
    let finish = || HopOrder::Tree(Order::Job(JobOrder::StdinEof));
    let wrong_tag = JobTag { job: FIRST, incarnation: JobIncarnation(8) };
    for order in [finish, || HopOrder::Abort] {
        assert!(step(&mut jobs, Input::Order(LinkId(4), tag(FIRST), order()), 1).is_empty());
        assert!(step(&mut jobs, Input::Order(PARENT_LINK, wrong_tag, order()), 1).is_empty());
    }
    assert_eq!(step(&mut jobs, Input::Order(PARENT_LINK, tag(FIRST), finish()), 1).len(), 1);
    let aborted = step(&mut jobs, Input::Order(PARENT_LINK, tag(FIRST), HopOrder::Abort), 1);
    assert_eq!(orders(&aborted), [(link_to(1), &HopOrder::Abort)]);
    assert_eq!((aborted_here(&aborted), jobs.is_empty()), (vec![FIRST], true));
}

#[test]
fn a_new_job_replaces_the_job_of_an_earlier_server_with_the_same_number() {
    let mut jobs = daemon_with_parent();
    let again = HopOrder::SetPlacement(placement(&[0, 1]));
    assert!(step(&mut jobs, Input::Order(PARENT_LINK, tag(FIRST), again), 1).is_empty());
    let placement = Placement { job_incarnation: JobIncarnation(8), ..placement(&[0]) };
    let tag = JobTag { job: FIRST, incarnation: JobIncarnation(8) };
    let order = HopOrder::SetPlacement(placement);
    let replaced = step(&mut jobs, Input::Order(LinkId(4), tag, order), 1);
    assert_eq!(aborted_here(&replaced), [FIRST]);
    assert_eq!(jobs.parent_link(FIRST), Some(LinkId(4)));
}

#[test]
fn a_lost_link_to_the_parent_ends_a_job_and_a_lost_link_to_a_child_loses_hosts() {
    let mut jobs = daemon_with_parent();
    let lost = step(&mut jobs, Input::LinkLost(link_to(1), "cut".to_owned()), 1);
    let is_loss = matches!(
        reports(&lost)[..],
        [(
            PARENT_LINK,
            HopReport::Tree(Report::HostsLost {
                hosts: std::ops::Range { start: 1, end: 2 },
                remains: Remains::Processes,
                ..
            })
        )]
    );
    assert!(is_loss, "{lost:?}");
    let lost = step(&mut jobs, Input::LinkLost(PARENT_LINK, "cut".to_owned()), 1);
    assert_eq!((aborted_here(&lost), jobs.is_empty()), (vec![FIRST], true));
}

#[test]
fn reports_of_children_and_of_the_shepherd_are_sent_to_the_parent() {
    let mut jobs = daemon_with_parent();
    let directory = || HopReport::Directory { host: JobHostId(1), path: "/tmp/j".to_owned() };
    let report = |link, tag, report| Input::Report(link, tag, report);
    let passed_on = step(&mut jobs, report(link_to(1), tag(FIRST), directory()), 1);
    assert_eq!(reports(&passed_on), [(PARENT_LINK, &directory())]);
    let wrong_tag = JobTag { job: FIRST, incarnation: JobIncarnation(8) };
    assert!(step(&mut jobs, report(link_to(1), wrong_tag, directory()), 1).is_empty());
    assert!(step(&mut jobs, report(link_to(2), tag(FIRST), directory()), 1).is_empty());
    let ready = || HopReport::Tree(Report::Job(JobReport::Ready));
    assert!(step(&mut jobs, report(link_to(1), tag(FIRST), ready()), 1).is_empty());
    let both = step(&mut jobs, local(FIRST, JobReport::Ready), 1);
    assert_eq!(reports(&both), [(PARENT_LINK, &ready())]);
    let reason = "it was restarted".to_owned();
    let unknown = HopReport::UnknownJob { reason };
    let lost = step(&mut jobs, report(link_to(1), tag(FIRST), unknown), 1);
    let [(_, HopReport::Tree(Report::HostsLost { reason, .. }))] = reports(&lost)[..] else {
        panic!("{lost:?}")
    };
    assert!(reason.starts_with("host h1 is lost: it was restarted"), "{reason}");
    let (code, reason) = (9, "the shepherd is dead".to_owned());
    let lost = step(&mut jobs, Input::Local(FIRST, LocalReport::Lost { code, reason }), 1);
    let HopReport::Tree(Report::HostsLost { code: 9, remains, .. }) = reports(&lost)[0].1 else {
        panic!("{lost:?}")
    };
    assert_eq!(*remains, Remains::Nothing, "the processes die with the shepherd");
}

#[test]
fn all_jobs_on_this_host_end_together() {
    let mut jobs = daemon_with_parent();
    begin(&mut jobs, SECOND, &[1]);
    let aborted = step(&mut jobs, Input::AbortAllHere, 1);
    assert_eq!((aborted_here(&aborted), orders(&aborted)), (vec![FIRST], vec![]));
    assert!(jobs.leads(SECOND) && jobs.parent_link(FIRST).is_none());
}

#[test]
fn directories_of_lost_hosts_are_removed_if_all_hosts_share_a_disk() {
    for is_shared in [false, true] {
        let mut jobs = daemon();
        if is_shared {
            jobs.set_shared_disk();
        }
        begin(&mut jobs, FIRST, &[0, 1]);
        let report = HopReport::Directory { host: JobHostId(1), path: "/tmp/j".to_owned() };
        assert!(step(&mut jobs, Input::Report(link_to(1), tag(FIRST), report), 1).is_empty());
        let aborted = step(&mut jobs, Input::Abort(FIRST), 1);
        let removed = aborted.iter().any(|effect| match effect {
            Effect::RemoveDirectories(paths) => paths == &["/tmp/j".to_owned()],
            _ => false,
        });
        assert_eq!((removed, aborted_here(&aborted)), (is_shared, vec![FIRST]));
        assert_eq!(orders(&aborted), [(link_to(1), &HopOrder::Abort)]);
        assert!(!jobs.leads(FIRST) && jobs.is_empty());
    }
}

#[test]
fn sessions_that_watch_a_job_get_its_metrics_and_its_end() {
    let mut jobs = daemon();
    begin(&mut jobs, FIRST, &[0]);
    begin(&mut jobs, SECOND, &[1]);
    let subscribe = |job, session, period_ms| {
        let subscriber = Subscriber::Session(SessionKey(session));
        Input::Subscribe { job, subscriber, period_ms }
    };
    for (job, session) in [(FIRST, 6), (FIRST, 7), (SECOND, 8)] {
        step(&mut jobs, subscribe(job, session, 100), 0);
        assert_eq!(jobs.watched_job(SessionKey(session)), Some(job));
    }
    step(&mut jobs, subscribe(FIRST, 7, 0), 0);
    assert_eq!(jobs.watched_job(SessionKey(7)), None);
    let metrics = || Metrics { hosts: Vec::new(), nodes: Vec::new() };
    let measured = step(&mut jobs, local(FIRST, JobReport::Metrics(metrics())), 1);
    let is_expected = matches!(
        &measured[..],
        [
            Effect::ToSession(SessionKey(6), ConsoleAnswer::Metrics(_)),
            Effect::PageMetrics(FIRST, _),
        ]
    );
    assert!(is_expected, "{measured:?}");
    let ended = kill(&mut jobs, FIRST, 2);
    let watchers: Vec<_> = ended
        .iter()
        .filter_map(|effect| match effect {
            Effect::ToSession(session, ConsoleAnswer::Finished { code }) => Some((*session, *code)),
            _ => None,
        })
        .collect();
    assert_eq!(watchers, [(SessionKey(6), 137)]);
    let code = ended.iter().find_map(|effect| match effect {
        Effect::Finished(FIRST, code) => Some(*code),
        _ => None,
    });
    assert_eq!((code, jobs.leads(FIRST)), (Some(137), false));
    assert!(ended.iter().any(|effect| matches!(effect, Effect::EndedHere(FIRST))));
    assert_eq!([6, 8].map(|session| jobs.watched_job(SessionKey(session))), [None, Some(SECOND)]);
}

#[test]
fn a_refused_job_ends_with_the_code_of_its_refusal() {
    let mut jobs = daemon();
    begin(&mut jobs, FIRST, &[0]);
    step(&mut jobs, local(FIRST, JobReport::Refused { code: 2, reason: "full".to_owned() }), 0);
    let ended = step(&mut jobs, local(FIRST, JobReport::Finished { elapsed_ns: 1 }), 0);
    let is_expected = |effect: &Effect| matches!(effect, Effect::Finished(FIRST, 2));
    assert!(ended.iter().any(is_expected), "{ended:?}");
}

fn run_order(idle_check_interval_us: u32, stop_condition: StopCondition) -> SwitchOrder {
    SwitchOrder::Run { idle_check_interval_us, stop_condition }
}

/// Two jobs on the only processor of h0. The first job runs, and the second waits for it.
fn two_ready_jobs() -> Jobs {
    let mut jobs = daemon();
    begin(&mut jobs, FIRST, &[0]);
    begin(&mut jobs, SECOND, &[0]);
    let ready = step(&mut jobs, local(FIRST, JobReport::Ready), 0);
    assert_eq!(switch_orders(&ready), [(FIRST, run_order(50_000, StopCondition::OnOrder))]);
    let ready = step(&mut jobs, local(SECOND, JobReport::Ready), 0);
    let more_often = (FIRST, run_order(1500, StopCondition::Unchanged));
    assert_eq!(switch_orders(&ready), [more_often]);
    assert_eq!(jobs.gang().running().collect::<Vec<_>>(), [FIRST]);
    jobs
}

fn stopped(job: JobId, switch_seq: SwitchSeq) -> Input {
    Input::Local(job, LocalReport::Switch(SwitchReport::Stopped { switch_seq }))
}

#[test]
fn idle_processes_are_sampled_more_often_while_another_job_waits() {
    let mut jobs = two_ready_jobs();
    let ended = kill(&mut jobs, SECOND, 1);
    let less_often = (FIRST, run_order(50_000, StopCondition::Unchanged));
    assert!(switch_orders(&ended).contains(&less_often), "{ended:?}");
    for (slice_ms, interval_us) in [(4, 2000), (40, 10_000), (4000, 50_000)] {
        let mut jobs = daemon();
        let slice = Duration::from_millis(slice_ms);
        let slots = BTreeMap::from([(HostId(0), 1)]);
        jobs.set_gang(GangConfig { slice, ..GangConfig::default() }, slots);
        begin(&mut jobs, FIRST, &[0]);
        let ready = step(&mut jobs, local(FIRST, JobReport::Ready), 0);
        let expected = (FIRST, run_order(interval_us, StopCondition::OnOrder));
        assert_eq!(switch_orders(&ready), [expected]);
    }
}

#[test]
fn jobs_share_a_processor_by_stops_that_their_hosts_know_in_advance() {
    let mut jobs = two_ready_jobs();
    assert_eq!(jobs.gang().deadline(), Some(at(5)));
    let ended = step(&mut jobs, Input::Tick, 5);
    let [(FIRST, SwitchOrder::Stop { switch_seq })] = switch_orders(&ended)[..] else {
        panic!("{ended:?}")
    };
    let switched = step(&mut jobs, stopped(FIRST, switch_seq), 6);
    let [(SECOND, SwitchOrder::Run { idle_check_interval_us: 1500, stop_condition })] =
        switch_orders(&switched)[..]
    else {
        panic!("{switched:?}")
    };
    let StopCondition::After { run_us: 500_000, switch_seq } = stop_condition else {
        panic!("{stop_condition:?}")
    };
    let switched = step(&mut jobs, stopped(SECOND, switch_seq), 506);
    assert!(matches!(switch_orders(&switched)[..], [(FIRST, SwitchOrder::Run { .. })]));
    assert_eq!(jobs.gang().switch_latency.count(), 2);
}

#[test]
fn the_user_is_notified_once_of_a_host_that_does_not_stop() {
    let mut jobs = two_ready_jobs();
    step(&mut jobs, Input::Tick, 5);
    let late = |effects: &[Effect]| -> Vec<String> {
        let text = |effect: &Effect| match effect {
            Effect::StopTimedOut(Some(CLIENT_JOB), text) => Some(text.clone()),
            _ => None,
        };
        effects.iter().filter_map(text).collect()
    };
    assert_eq!(late(&step(&mut jobs, Input::Tick, 1004)), [""; 0]);
    let expected = "job 1 has not been stopped within 1 s on host h0: the job continues to run, \
                    and other jobs wait for its processors";
    assert_eq!(late(&step(&mut jobs, Input::Tick, 1005)), [expected]);
    let stops = (1006..10_000).flat_map(|time| step(&mut jobs, Input::Tick, time));
    let again: Vec<Effect> = stops.collect();
    assert_eq!(late(&again), [""; 0], "once");
    // On other hosts, the notice names the first host, or hosts that report through it.
    let mut jobs = daemon();
    begin(&mut jobs, FIRST, &[1, 2, 3]);
    begin(&mut jobs, SECOND, &[1]);
    for job in [FIRST, SECOND] {
        let ready = HopReport::Tree(Report::Job(JobReport::Ready));
        step(&mut jobs, Input::Report(link_to(1), tag(job), ready), 0);
    }
    step(&mut jobs, Input::Tick, 5);
    let text = late(&step(&mut jobs, Input::Tick, 1005)).remove(0);
    assert!(text.contains(" on host h1 or one of 2 hosts below it: "), "{text}");
}

#[test]
fn a_job_is_suspended_by_its_user_until_the_user_resumes_it() {
    let mut jobs = two_ready_jobs();
    let held = step(&mut jobs, Input::FromSession(FIRST, JobRequest::Suspend), 1);
    let [.., (FIRST, SwitchOrder::Stop { switch_seq })] = switch_orders(&held)[..] else {
        panic!("{held:?}")
    };
    assert!(jobs.gang().is_suspended(FIRST) && !jobs.gang().is_suspended(SECOND));
    let freed = step(&mut jobs, stopped(FIRST, switch_seq), 1);
    assert!(matches!(switch_orders(&freed)[..], [(SECOND, SwitchOrder::Run { .. })]));
    assert_eq!(jobs.gang().running().collect::<Vec<_>>(), [SECOND]);
    step(&mut jobs, Input::FromSession(FIRST, JobRequest::Resume), 2);
    assert!(!jobs.gang().is_suspended(FIRST));
}

#[test]
fn a_job_whose_output_is_not_read_is_suspended_after_a_second() {
    let mut jobs = daemon();
    begin(&mut jobs, FIRST, &[0]);
    step(&mut jobs, local(FIRST, JobReport::Ready), 0);
    let text = || OutputReport::Text {
        host: JobHostId(0),
        stream: Stream::Stdout,
        bytes: vec![b'x'; 1 << 20],
        is_partial_line: false,
    };
    let mut written = 0u64;
    while !jobs.tree.led(FIRST).unwrap().node.is_blocked() {
        let report = LocalReport::Shepherd(ShepherdReport::Output(text()));
        step(&mut jobs, Input::Local(FIRST, report), 0);
        written += 1 << 20;
    }
    step(&mut jobs, Input::Tick, 100);
    assert_eq!(jobs.gang().deadline(), Some(at(1100)));
    step(&mut jobs, Input::Tick, 1099);
    assert!(!jobs.gang().is_suspended(FIRST));
    let held = step(&mut jobs, Input::Tick, 1100);
    assert!(matches!(switch_orders(&held)[..], [(FIRST, SwitchOrder::Stop { .. })]));
    assert!(jobs.gang().is_suspended(FIRST));
    assert!(switch_orders(&step(&mut jobs, Input::Tick, 1200)).is_empty());
    let read = Input::FromSession(FIRST, JobRequest::OutputAck(written));
    step(&mut jobs, read, 1300);
    step(&mut jobs, Input::Tick, 1300);
    assert!(!jobs.gang().is_suspended(FIRST));
}

/// Two jobs of another leader that rotate on h0. The first of them runs.
fn jobs_in_rotation() -> Jobs {
    let mut jobs = daemon();
    for (job, position) in [(FIRST, 0), (SECOND, 1)] {
        let order = HopOrder::SetPlacement(placement(&[0]));
        step(&mut jobs, Input::Order(PARENT_LINK, tag(job), order), 0);
        let rotation = LocalRotation {
            first_switch_seq: SwitchSeq(10),
            turn_us: 5000,
            turn_count: 8,
            job_count: 2,
            position,
        };
        let run = run_order(1500, StopCondition::LocalRotation(rotation));
        let order = HopOrder::Tree(Order::Switch(run));
        step(&mut jobs, Input::Order(PARENT_LINK, tag(job), order), 0);
    }
    assert_eq!(jobs.expected_rotation_stop(), Some((FIRST, SwitchSeq(10))));
    jobs
}

#[test]
fn a_rotation_continues_while_all_of_its_jobs_exist_and_are_busy() {
    let idle = |is_idle| {
        let summary = if is_idle { IdleSummary::EMPTY } else { IdleSummary::BUSY };
        LocalReport::Switch(SwitchReport::IdleSummary { element: ElementIndex(0), summary })
    };
    let mut jobs = jobs_in_rotation();
    assert_eq!(jobs.next_rotation_turn(|job| job != SECOND), None, "its shepherd has died");
    step(&mut jobs, Input::Local(FIRST, idle(true)), 1);
    assert_eq!(jobs.next_rotation_turn(|_| true), None, "the scheduler has to decide");
    step(&mut jobs, Input::Local(FIRST, idle(false)), 1);
    let next = jobs.next_rotation_turn(|_| true).map(|(job, _)| job);
    assert_eq!(next, Some(SECOND));
    assert_eq!(jobs.expected_rotation_stop(), Some((SECOND, SwitchSeq(11))));
}

// Promise of `interrupted_rotations_never_put_two_jobs_on_a_processor`.
#[test]
fn a_run_or_stop_order_to_one_job_ends_the_rotation() {
    let stop = SwitchOrder::Stop { switch_seq: SwitchSeq(20) };
    let unlimited_run = run_order(0, StopCondition::OnOrder);
    let unchanged = run_order(0, StopCondition::Unchanged);
    for (order, ends) in [(stop, true), (unlimited_run, true), (unchanged, false)] {
        let mut jobs = jobs_in_rotation();
        let input = Input::Order(PARENT_LINK, tag(SECOND), HopOrder::Tree(Order::Switch(order)));
        assert_eq!(switch_orders(&step(&mut jobs, input, 1)), [(SECOND, order)]);
        let expected_stop = (!ends).then_some((FIRST, SwitchSeq(10)));
        assert_eq!(jobs.expected_rotation_stop(), expected_stop, "{order:?}");
    }
}

#[test]
fn a_rotation_that_cannot_continue_ends_with_a_report_to_the_leader() {
    let mut jobs = jobs_in_rotation();
    jobs.end_rotation_with(JobId(3));
    assert!(jobs.expected_rotation_stop().is_some(), "3 is not in it");
    jobs.end_rotation(FIRST, SwitchSeq(10));
    let ended = effects(&mut jobs, at(1));
    let switch_seq = SwitchSeq(10);
    let report = HopReport::Tree(Report::Switch(SwitchReport::Stopped { switch_seq }));
    assert_eq!(reports(&ended), [(PARENT_LINK, &report)]);
    assert_eq!((jobs.expected_rotation_stop(), jobs.next_rotation_turn(|_| true)), (None, None));
    let mut jobs = jobs_in_rotation();
    jobs.end_rotation_with(SECOND);
    assert_eq!(jobs.expected_rotation_stop(), None);
}
