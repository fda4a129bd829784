use super::*;
use proptest::prelude::*;

fn facts(size: u32) -> JobFacts {
    JobFacts {
        space_name: "kvs_7".to_owned(),
        size,
        universe_size: size,
        app_number: 0,
        process_mapping: process_mapping(&[size]),
    }
}

fn host(processes: usize) -> PmiHost {
    PmiHost::new(facts(processes as u32), 0, processes, 1 << 20)
}

/// Sends bytes of a process. Returns the text of the answer.
fn ask(host: &mut PmiHost, process: usize, bytes: &[u8]) -> String {
    match &host.on_bytes(process, bytes)[..] {
        [PmiAction::Send { process: to, bytes }] if *to == process => {
            String::from_utf8(bytes.clone()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

fn second(text: &str) -> Vec<u8> {
    format!("{:>6}{text}", text.len()).into_bytes()
}

/// Like `ask`, with a message of version 2 without its length.
fn ask_second(host: &mut PmiHost, process: usize, text: &str) -> String {
    ask(host, process, &second(text))[6..].to_owned()
}

const INIT_ONE: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";
const INIT_TWO: &[u8] = b"cmd=init pmi_version=2 pmi_subversion=0\n";

/// The text of the violation.
fn violation(host: &mut PmiHost, process: usize, bytes: &[u8]) -> String {
    match &host.on_bytes(process, bytes)[..] {
        [.., PmiAction::Violation { process: by, text }] if *by == process => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_of_version_1_starts_as_mpich_does() {
    let mut host = PmiHost::new(facts(2), 0, 1, 1 << 20);
    for (question, answer) in [
        (INIT_ONE, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
        (
            b"cmd=get_maxes\n",
            "cmd=maxes rc=0 msg=success kvsname_max=256 keylen_max=64 vallen_max=1024\n",
        ),
        (b"cmd=get_appnum\n", "cmd=appnum rc=0 msg=success appnum=0\n"),
        (b"cmd=get_universe_size\n", "cmd=universe_size rc=0 msg=success size=2\n"),
        (b"cmd=get_my_kvsname\n", "cmd=my_kvsname rc=0 msg=success kvsname=kvs_7\n"),
        (
            b"cmd=get kvsname=kvs_7 key=PMI_process_mapping\n",
            "cmd=get_result rc=0 msg=success found=TRUE value=(vector,(0,1,2))\n",
        ),
        (b"cmd=put kvsname=kvs_7 key=a value=b\n", "cmd=put_result rc=0 msg=success\n"),
        (
            b"cmd=get kvsname=other key=a\n",
            "cmd=get_result rc=-1 msg=key_not_found value=unknown\n",
        ),
    ] {
        assert_eq!(ask(&mut host, 0, question), answer);
    }
    assert!(!host.may_exit(0));
    let actions = host.on_bytes(0, b"cmd=finalize\n");
    assert_eq!(actions[0], PmiAction::Finalized { process: 0 });
    assert!(host.may_exit(0));
}

#[test]
fn a_process_of_version_2_is_sent_its_rank() {
    let mut host = PmiHost::new(facts(6), 4, 2, 1 << 20);
    let greeting = ask(&mut host, 1, INIT_TWO);
    assert_eq!(greeting, "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n");
    for (question, answer) in [
        (
            "cmd=fullinit;pmirank=5;thrid=0x7;",
            "cmd=fullinit-response;thrid=0x7;pmi-version=2;pmi-subversion=0;rank=5;size=6;appnum=0;\
             debugged=FALSE;pmiverbose=FALSE;rc=0;",
        ),
        ("cmd=job-getid;", "cmd=job-getid-response;jobid=kvs_7;rc=0;"),
        (
            "cmd=info-getjobattr;key=PMI_process_mapping;",
            "cmd=info-getjobattr-response;found=TRUE;value=(vector,(0,1,6));rc=0;",
        ),
        (
            "cmd=info-getjobattr;key=universeSize;",
            "cmd=info-getjobattr-response;found=TRUE;value=6;rc=0;",
        ),
        ("cmd=info-getjobattr;key=x;", "cmd=info-getjobattr-response;found=FALSE;rc=0;"),
        ("cmd=kvs-get;jobid=kvs_7;srcid=-1;key=x;", "cmd=kvs-get-response;found=FALSE;rc=0;"),
        ("cmd=spawn;ncmds=1;", "cmd=spawn-response;rc=1;errmsg=not supported by this launcher;"),
        ("cmd=finalize;", ""),
    ] {
        if answer.is_empty() {
            let actions = host.on_bytes(1, &second(question));
            assert!(actions.contains(&PmiAction::Finalized { process: 1 }), "{actions:?}");
        } else {
            assert_eq!(ask_second(&mut host, 1, question), answer);
        }
    }
}

#[test]
fn a_fence_does_not_wait_for_processes_that_have_exited() {
    let in_fence = |action: Option<&PmiAction>| match action {
        Some(PmiAction::Fence { processes, .. }) => Some(processes.clone()),
        _ => None,
    };
    // A process that has never used PMI exits after the others have entered the fence, or before.
    for exits_first in [false, true] {
        let mut host = host(3);
        assert!(!exits_first || host.on_exit(1).is_none());
        let mut reported = None;
        for process in [0, 2] {
            ask(&mut host, process, INIT_ONE);
            let actions = host.on_bytes(process, b"cmd=barrier_in\n");
            reported = reported.or(in_fence(actions.first()));
        }
        if !exits_first {
            assert_eq!(reported, None);
            reported = in_fence(host.on_exit(1).as_ref());
        }
        assert_eq!(reported, Some(vec![0, 2]));
        assert_eq!(host.on_exit(2), None, "it has been reported");
        assert_eq!(host.on_bytes(1, INIT_ONE), []);
        assert_eq!(host.end_fence().len(), 1);
    }
}

#[test]
fn a_process_may_abort_in_a_fence_and_after_finalize() {
    let mut host = host(2);
    ask(&mut host, 0, INIT_ONE);
    host.on_bytes(0, b"cmd=barrier_in\n");
    let abort = |actions: Vec<PmiAction>| matches!(actions[..], [PmiAction::Abort { code: 4, .. }]);
    assert!(abort(host.on_bytes(0, b"cmd=abort exitcode=4\n")));
    ask(&mut host, 1, INIT_ONE);
    host.on_bytes(1, b"cmd=finalize\n");
    assert!(abort(host.on_bytes(1, b"cmd=abort exitcode=4\n")));
}

#[test]
fn a_mapping_that_exceeds_the_buffer_of_clients_is_not_sent() {
    for (len, is_sent) in [(MAX_VALUE_LEN - 1, true), (MAX_VALUE_LEN, false)] {
        let long = JobFacts { process_mapping: "m".repeat(len), ..facts(1) };
        let mut host = PmiHost::new(long, 0, 1, 1 << 20);
        ask(&mut host, 0, INIT_ONE);
        let answer = ask(&mut host, 0, b"cmd=get kvsname=kvs_7 key=PMI_process_mapping\n");
        assert_eq!(answer.contains("mmm"), is_sent, "{answer}");
    }
}

#[test]
fn a_fence_waits_for_every_process_and_delivers_the_entries_of_all_hosts() {
    let mut hosts = [PmiHost::new(facts(3), 0, 2, 1 << 20), PmiHost::new(facts(3), 2, 1, 1 << 20)];
    let mut entries = Vec::new();
    for (host, process, key) in [(0, 0, "a"), (1, 0, "c"), (0, 1, "b")] {
        let host = &mut hosts[host];
        ask(host, process, INIT_ONE);
        ask(host, process, format!("cmd=put kvsname=kvs_7 key={key} value=v\n").as_bytes());
        let actions = host.on_bytes(process, b"cmd=barrier_in\n");
        let is_last = key != "a";
        assert_eq!(actions.len(), usize::from(is_last), "{key}: {actions:?}");
        for action in actions {
            let PmiAction::Fence { new_entries, .. } = action else { panic!("{action:?}") };
            entries.extend(new_entries);
        }
    }
    for (host, processes) in hosts.iter_mut().zip([2, 1]) {
        assert_eq!(host.in_fence().count(), processes);
        assert!((0..processes).all(|process| host.awaits_answer(process)));
        host.merge(&entries).unwrap();
        let actions = host.end_fence();
        assert_eq!(actions.len(), processes);
        assert_eq!(host.in_fence().count(), 0);
        assert!(!(0..processes).any(|process| host.awaits_answer(process)));
        for key in ["a", "b", "c"] {
            let question = format!("cmd=get kvsname=kvs_7 key={key}\n");
            assert!(ask(host, 0, question.as_bytes()).ends_with("value=v\n"), "{key}");
        }
    }
}

#[test]
fn a_process_waits_for_an_attribute_of_its_node() {
    let mut host = host(3);
    (0..3).for_each(|process| _ = ask(&mut host, process, INIT_TWO));
    let no_wait = "cmd=info-getnodeattr;key=k;wait=FALSE;";
    assert_eq!(
        ask_second(&mut host, 0, no_wait),
        "cmd=info-getnodeattr-response;found=FALSE;rc=0;"
    );
    assert_eq!(host.on_bytes(1, &second("cmd=info-getnodeattr;key=k;wait=TRUE;")), []);
    assert_eq!(host.on_bytes(2, &second("cmd=info-getnodeattr;key=other;wait=TRUE;")), []);
    let actions = host.on_bytes(0, &second("cmd=info-putnodeattr;key=k;value=v;"));
    let answer = second("cmd=info-getnodeattr-response;found=TRUE;value=v;rc=0;");
    assert_eq!(actions[1..], [PmiAction::Send { process: 1, bytes: answer }]);
    let again = ask_second(&mut host, 0, "cmd=info-putnodeattr;key=k;value=w;");
    assert_eq!(again, "cmd=info-putnodeattr-response;rc=1;errmsg=the key has a value;");
    assert!(violation(&mut host, 2, &second("cmd=kvs-fence;")).contains("before the answer"));
}

#[test]
fn a_forbidden_command_is_reported_and_closes_the_connection() {
    let endless = [b'x'; 100];
    for (begin, bytes, text) in [
        (&b""[..], &b"cmd=get_maxes\n"[..], "PMI command 'get_maxes' before init"),
        (INIT_ONE, INIT_ONE, "PMI init for the second time"),
        (INIT_ONE, b"    14cmd=kvs-fence;", "PMI command 'kvs-fence' of another version"),
        (INIT_ONE, b"cmd=surprise\n", "the PMI command 'surprise' is unknown"),
        (INIT_ONE, b"cmd=finalize\ncmd=put key=a value=b\n", "PMI command 'put' after finalize"),
        (
            INIT_ONE,
            b"cmd=barrier_in\ncmd=get_maxes\n",
            "PMI command 'get_maxes' before the answer to another one",
        ),
        (INIT_ONE, &endless, "a PMI message that begins neither with 'cmd=' nor with its length"),
    ] {
        let mut host = host(2);
        host.on_bytes(0, begin);
        assert_eq!(violation(&mut host, 0, bytes), text);
        assert_eq!(host.on_bytes(0, INIT_ONE), [], "nothing more is read");
        assert!(!host.may_exit(0));
        assert!(ask(&mut host, 1, INIT_ONE).contains("rc=0"), "others go on");
    }
}

#[test]
fn a_text_of_a_process_is_shown_without_control_characters_and_not_in_full() {
    let mut host = host(1);
    host.on_bytes(0, INIT_ONE);
    let command = "\x1b[31m".to_owned() + &"x".repeat(200);
    let text = violation(&mut host, 0, format!("cmd={command}\n").as_bytes());
    assert!(text.starts_with("the PMI command '\u{fffd}[31mxx"), "{text}");
    assert_eq!(text.chars().count(), MAX_SHOWN_LEN);
}

#[test]
fn a_refused_entry_is_answered_with_the_reason() {
    let mut host = host(1);
    ask(&mut host, 0, INIT_ONE);
    let long = format!("cmd=put key=a value={}\n", "v".repeat(MAX_VALUE_LEN + 1));
    let answer = "cmd=put_result rc=-1 msg=a\\ value\\ has\\ at\\ most\\ 1024\\ bytes\n";
    assert_eq!(ask(&mut host, 0, long.as_bytes()), answer);
}

#[test]
fn abort_is_sent_with_its_code_and_is_not_answered() {
    let mut host = host(1);
    ask(&mut host, 0, INIT_ONE);
    let abort = PmiAction::Abort { process: 0, code: 9, text: "bad day".to_owned() };
    assert_eq!(host.on_bytes(0, b"cmd=abort exitcode=9 message=bad\\ day\n"), [abort]);
}

#[test]
fn a_mapping_joins_equal_hosts() {
    assert_eq!(process_mapping(&[4]), "(vector,(0,1,4))");
    assert_eq!(process_mapping(&[2, 2, 2, 1]), "(vector,(0,3,2),(3,1,1))");
}

proptest! {
    #[test]
    fn no_bytes_make_a_host_fail(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        crate::fuzz(&bytes);
    }

    /// Processes of several hosts put, fence and get in any order. After a fence every process gets
    /// the values that were put before it.
    #[test]
    fn entries_are_complete_after_each_fence(
        sizes in prop::collection::vec(1usize..4, 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        fences in 1usize..4,
    ) {
        let total: usize = sizes.iter().sum();
        let mut hosts = Vec::new();
        let mut places = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            hosts.push(PmiHost::new(facts(total as u32), places.len() as u32, *size, 1 << 20));
            places.extend((0..*size).map(|process| (index, process)));
        }
        places.iter().for_each(|(host, process)| _ = ask(&mut hosts[*host], *process, INIT_ONE));
        for fence in 0..fences {
            let mut waiting: Vec<usize> = (0..total).collect();
            let mut draws = order.iter();
            let mut entries = Vec::new();
            while !waiting.is_empty() {
                let next = draws.next().map_or(0, |draw| draw.index(waiting.len()));
                let rank = waiting.swap_remove(next);
                let (host, process) = places[rank];
                let put = format!("cmd=put kvsname=kvs_7 key={fence}-{rank} value={rank}\n");
                ask(&mut hosts[host], process, put.as_bytes());
                for action in hosts[host].on_bytes(process, b"cmd=barrier_in\n") {
                    let PmiAction::Fence { new_entries, .. } = action else { panic!("{action:?}") };
                    entries.extend(new_entries);
                }
            }
            let mut answered = 0;
            for host in &mut hosts {
                prop_assert_eq!(host.merge(&entries), Ok(()));
                answered += host.end_fence().len();
            }
            prop_assert_eq!(answered, total);
            for (host, process) in &places {
                for rank in 0..total {
                    let get = format!("cmd=get kvsname=kvs_7 key={fence}-{rank}\n");
                    let answer = ask(&mut hosts[*host], *process, get.as_bytes());
                    let expected = format!("value={rank}\n");
                    prop_assert!(answer.ends_with(&expected), "{}", answer);
                }
            }
        }
    }
}
