//! Attacks by many messages or by large ones.

use super::driver::service::{ALICE, BOB, Client, Service, encode, run_as, spec};
use super::driver::{TEST_TIMEOUT, bytes, sh};
use super::support::{
    HONEST_WAIT_TIMEOUT, longest_wait, process_of, shepherd_of, wait_for_process,
};
use nix::sys::signal::{Signal, kill};
use score_proto::message::{
    ConsoleRequest, ElementSpec, FileDigest, JobLimits, JobRequest, JobSpec, JobTerms,
    MAX_IO_CHUNK, StageSpec,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a flood waits until its socket accepts more bytes.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);

#[test]
fn a_job_of_very_many_programs_is_refused_at_once() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let travelling = |index: usize| ElementSpec {
        path: bytes(&format!("/{index}")),
        digest: Some(FileDigest { hash: [1; 32], size: 1 }),
        ..sh("true")
    };
    let stages = |count: usize, per_stage: usize| -> Vec<StageSpec> {
        let stage =
            |stage| (0..per_stage).map(|index| travelling(stage * per_stage + index)).collect();
        (0..count).map(|index| StageSpec { elements: stage(index) }).collect()
    };
    let wait = longest_wait(&service, || {
        for (stages, limit) in [(stages(17_000, 1), "1024"), (stages(1, 100), "64")] {
            let mut client = Client::connect_as(&service.socket_of("hosta"), ALICE);
            client.request(ALICE, 2, JobSpec { stages, ..spec("true", &[]) });
            assert_eq!(client.until_ended(), 2, "{}", client.notices);
            assert!(client.notices.contains(limit), "{}", client.notices);
        }
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_flood_of_messages_waits_and_loses_no_host() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut victim = Client::connect_as(&service.socket_of("hosta"), BOB);
    victim.request(BOB, 4, spec("echo up; sleep 1000", &[]));
    victim.until_noticed("up");
    let memory_before = service.memory();
    let flood = encode(&[JobRequest::OutputAck(1)]).repeat(1 << 14);
    let wait = longest_wait(&service, || {
        let flood_once = || {
            let client = Client::log_in(&service.socket_of("hosta"), ALICE);
            let end = Instant::now() + Duration::from_secs(6);
            while Instant::now() < end {
                let _ = client.write(&flood, WRITE_TIMEOUT);
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(flood_once)));
        });
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    assert!(
        !victim.receive(Duration::from_millis(50)) || victim.code.is_none(),
        "{}",
        victim.notices
    );
    assert_eq!(victim.code, None, "{}", victim.notices);
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 32 * 1024, "{grown} KiB more");
    victim.send(&[JobRequest::Kill]);
    assert_ne!(victim.until_ended(), 0);
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_flood_of_messages_to_all_hosts_of_a_job_loses_no_host() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut victim = Client::connect_as(&service.socket_of("hosta"), BOB);
    victim.request(BOB, 4, spec("echo up; sleep 1000", &[]));
    victim.until_noticed("up");
    let memory_before = service.memory();
    let wait = longest_wait(&service, || {
        for host in ["hosta", "hostb"] {
            let mut client = Client::connect_as(&service.socket_of(host), ALICE);
            client.request(ALICE, 4, spec("trap '' USR1; echo up; sleep 1000", &[]));
            client.until_noticed("up");
            let flood = encode(&[JobRequest::Signal(libc::SIGUSR1)]).repeat(1 << 14);
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                let _ = client.write(&flood, WRITE_TIMEOUT);
            }
            // The client disconnects. The service must not wait until its messages have been
            // handled.
            drop(client);
        }
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 32 * 1024, "{grown} KiB more");
    let mut operator = Client::log_in(&service.socket(), ALICE);
    operator.send(&[ConsoleRequest::List]);
    assert_eq!(operator.until_ended(), 0);
    assert_eq!(victim.code, None, "{}", victim.notices);
    victim.send(&[JobRequest::Kill]);
    assert_ne!(victim.until_ended(), 0);
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn a_flood_of_messages_to_all_hosts_leaves_the_other_sessions_of_its_user_readable() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    for host in ["hosta", "hostb"] {
        let mut flooder = Client::connect_as(&service.socket_of(host), ALICE);
        flooder.request(ALICE, 4, spec("trap '' USR1; echo up; sleep 1000", &[]));
        flooder.until_noticed("up");
        let flood = encode(&[JobRequest::Signal(libc::SIGUSR1)]).repeat(1 << 14);
        let end = Instant::now() + Duration::from_secs(3);
        let longest = std::thread::scope(|scope| {
            scope.spawn(|| {
                while Instant::now() < end {
                    let _ = flooder.write(&flood, WRITE_TIMEOUT);
                }
            });
            let mut longest = Duration::ZERO;
            while Instant::now() < end {
                let asked_at = Instant::now();
                let mut client = Client::log_in(&service.socket_of(host), ALICE);
                client.send(&[ConsoleRequest::List]);
                assert_eq!(client.until_ended(), 0, "{}", client.notices);
                longest = longest.max(asked_at.elapsed());
            }
            longest
        });
        println!("{host}: another session waited {longest:?}");
        assert!(longest < HONEST_WAIT_TIMEOUT, "{host}: another session waited {longest:?}");
    }
    assert!(service.is_alive());
    service.serves(BOB);
}

/// The status of the response to a GET request.
fn status_of_page(url: &str, file: &str) -> u16 {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let request = format!("GET /{path}{file} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

#[test]
fn a_user_without_time_gets_the_page_but_no_data() {
    let Some(service) = Service::start_two_hosts() else { return };
    let mut client = Client::log_in(&service.socket(), ALICE);
    client.send(&[ConsoleRequest::Page]);
    assert_eq!(client.until_ended(), 0, "{}", client.notices);
    let url = client.page.unwrap();
    assert_eq!((status_of_page(&url, ""), status_of_page(&url, "data")), (200, 200));
    let flood = encode(&[JobRequest::OutputAck(1)]).repeat(1 << 14);
    let end = Instant::now() + Duration::from_secs(5);
    let flooder = Client::log_in(&service.socket(), ALICE);
    let statuses = std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                let _ = flooder.write(&flood, WRITE_TIMEOUT);
            }
        });
        let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
        while Instant::now() < end {
            assert_eq!(status_of_page(&url, "page.css"), 200);
            *statuses.entry(status_of_page(&url, "data")).or_default() += 1;
        }
        statuses
    });
    println!("responses: {statuses:?}");
    assert!(statuses.contains_key(&429), "{statuses:?}");
    assert!(statuses.keys().all(|status| [200, 429].contains(status)), "{statuses:?}");
    service.serves(BOB);
}

#[test]
fn a_job_whose_shepherd_is_stopped_ends_when_its_flooding_client_is_killed() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let mut client = Client::connect_as(&service.socket(), ALICE);
    let command = format!("sleep 6{}", std::process::id());
    let job = JobSpec { reads_stdin: true, ..spec(&format!("echo up; {command}"), &[]) };
    client.request(ALICE, 1, job);
    client.until_noticed("up");
    let shepherd = shepherd_of(wait_for_process(&command));
    run_as(ALICE, || kill(shepherd, Signal::SIGSTOP).unwrap());
    let memory_before = service.memory();
    let flood = encode(&[JobRequest::Stdin(vec![0; MAX_IO_CHUNK])]).repeat(16);
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let _ = client.write(&flood, WRITE_TIMEOUT);
    }
    let grown = service.memory().saturating_sub(memory_before);
    assert!(grown < 16 * 1024, "{grown} KiB more");
    drop(client);
    let killed_at = Instant::now();
    while process_of(&command).is_some() {
        assert!(killed_at.elapsed() < TEST_TIMEOUT, "the job does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(service.is_alive());
    service.serves(BOB);
}

/// Answers the requests for parts of a program with zeroes. Returns the number of bytes.
fn send_zeroes(client: &mut Client) -> u64 {
    let mut sent_bytes = 0;
    for (hash, offset, length) in std::mem::take(&mut client.file_requests) {
        for start in (0..length).step_by(MAX_IO_CHUNK) {
            let count = (length - start).min(MAX_IO_CHUNK as u64);
            let bytes = vec![0; count as usize];
            client.send(&[JobRequest::FileChunk { hash, offset: offset + start, bytes }]);
            sent_bytes += count;
        }
    }
    sent_bytes
}

// Promise (several users): A user cannot use another user's copied program, change it, or learn
// that it exists.
#[test]
fn a_large_program_is_written_by_its_user_within_the_limits_of_the_job() {
    let Some(mut service) = Service::start_two_hosts() else { return };
    let memory_before = service.memory();
    let element = ElementSpec {
        path: bytes("/large"),
        digest: Some(FileDigest { hash: [1; 32], size: 1 << 30 }),
        ..sh("true")
    };
    let stages = vec![StageSpec { elements: vec![element] }];
    let limited = |limits: JobLimits| JobSpec {
        terms: Box::new(JobTerms { limits, ..JobTerms::default() }),
        stages: stages.clone(),
        ..spec("true", &[])
    };
    let memory_limit = JobLimits { memory: Some(16 << 20), ..JobLimits::default() };
    let disk_limit = JobLimits { disk: Some(4 << 20), ..JobLimits::default() };
    let wait = longest_wait(&service, || {
        let mut client = Client::connect_as(&service.socket_of("hosta"), ALICE);
        client.request(ALICE, 1, limited(memory_limit));
        let mut sent_bytes = 0;
        while sent_bytes < 64 << 20 {
            assert!(client.receive(Duration::from_millis(50)), "{}", client.notices);
            sent_bytes += send_zeroes(&mut client);
        }
        // Chunks that were not requested are dropped.
        let mut flooder = Client::connect_as(&service.socket(), ALICE);
        flooder.request(ALICE, 1, limited(memory_limit));
        for offset in 0..2000 {
            let bytes = vec![0; MAX_IO_CHUNK];
            flooder.send(&[JobRequest::FileChunk { hash: [2; 32], offset, bytes }]);
        }
        let grown = service.memory().saturating_sub(memory_before);
        assert!(grown < 24 * 1024, "{grown} KiB more");
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", service.pid())).unwrap();
        let names = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let names: Vec<_> = names.filter(|name| name.to_string_lossy().contains("memfd")).collect();
        assert_eq!(names, Vec::<PathBuf>::new());
        client.send(&[JobRequest::Kill]);
        client.until_ended();
        let mut client = Client::connect_as(&service.socket(), ALICE);
        client.request(ALICE, 1, limited(disk_limit));
        while client.code.is_none() {
            assert!(client.receive(Duration::from_millis(50)), "{}", client.notices);
            send_zeroes(&mut client);
        }
        assert_ne!(client.code, Some(0));
        assert!(client.notices.contains("disklimit"), "{}", client.notices);
    });
    assert!(wait < HONEST_WAIT_TIMEOUT, "another user waited {wait:?}");
    assert!(service.is_alive());
    service.serves(BOB);
}

#[test]
fn unfinished_messages_of_many_logins_take_a_bounded_amount_of_memory() {
    const LOGINS: usize = 300;
    let Some(mut service) = Service::start_two_hosts() else { return };
    for host in ["hosta", "hostb"] {
        let memory_before = service.memory_of(host);
        let unfinished = encode(&[JobRequest::Stdin(vec![0; 1_000_000])]);
        let mut clients = Vec::new();
        let wait = longest_wait(&service, || {
            for _ in 0..LOGINS {
                let client = Client::log_in(&service.socket_of(host), ALICE);
                // Send all but the last byte, or as much as the daemon reads.
                let _ = client
                    .write_all(&unfinished[..unfinished.len() - 1], Duration::from_millis(10));
                clients.push(client);
            }
        });
        assert!(wait < HONEST_WAIT_TIMEOUT, "{host}: another user waited {wait:?}");
        let grown = service.memory_of(host).saturating_sub(memory_before);
        assert!(grown < 128 * 1024, "{host}: {grown} KiB more");
        drop(clients);
        // The memory of the user is free again.
        let mut client = Client::connect_as(&service.socket_of(host), ALICE);
        client.request(ALICE, 1, spec("echo room", &["wait"]));
        assert_eq!((client.until_ended(), client.out.as_str()), (0, "room\n"));
    }
    assert!(service.is_alive());
    service.serves(BOB);
}
