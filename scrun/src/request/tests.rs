use super::*;
use score_proto::message::HostSpec;
use std::ffi::{OsStr, OsString};

fn program_asking(path: &str, change: impl Fn(&mut Request)) -> ProgramRequest {
    let mut request = Request { uses_libscore: true, ..Request::default() };
    change(&mut request);
    ProgramRequest { path: path.into(), request, mpi_library: None, uses_openmp: false }
}

fn options(line: &str) -> ScrunOptions {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    ScrunOptions::parse(&words, OsStr::new("")).unwrap().0
}

fn check_with(programs: &[ProgramRequest], line: &str) -> (Option<String>, Vec<String>) {
    let mut notices = Vec::new();
    let result = check(programs, &options(line), &mut |_, text| notices.push(text.to_owned()));
    (result.err().map(|error| error.line), notices)
}

#[test]
fn requests_of_several_programs_are_intersected() {
    let programs = [
        program_asking("/a", |request| request.nodes = (1, 8)),
        program_asking("/b", |request| request.nodes = (4, 64)),
        program_asking("/c", |request| request.procs = Some(4)),
    ];
    let combined = intersect(&programs).unwrap();
    assert_eq!((combined.nodes, combined.procs), ((4, 8), Some(4)));
}

#[test]
fn programs_that_exclude_each_other_are_both_named() {
    let programs = [
        program_asking("/any", |_| {}),
        program_asking("/few", |request| request.nodes = (1, 2)),
        program_asking("/many", |request| request.nodes = (4, 64)),
    ];
    let error = intersect(&programs).unwrap_err();
    assert_eq!(error.code, 2);
    for part in ["/few and /many", "NUM_NODES(1, 2)", "NUM_NODES(4, 64)"] {
        assert!(error.line.contains(part), "{}", error.line);
    }
}

#[test]
fn zero_copy_and_several_networks_are_accepted() {
    assert_eq!(
        check_with(&[program_asking("/z", |request| request.zerocopy = true)], ""),
        (None, vec![])
    );
    assert_eq!(
        check_with(&[program_asking("/two", |request| request.network_sets = 2)], ""),
        (None, vec![])
    );
}

#[test]
fn the_hetero_option_needs_the_macro() {
    let without = [program_asking("/p", |_| {})];
    assert!(check_with(&without, "-hetero").0.unwrap().contains("SCORE_RSRC_HETERO_NODES"));
    let with = [program_asking("/p", |request| request.allows_hetero = true)];
    assert_eq!(check_with(&with, "-hetero"), (None, vec![]));
}

#[test]
fn nockpt_only_warns_and_only_with_the_checkpoint_option() {
    let program = [program_asking("/p", |request| request.nockpt = true)];
    assert_eq!(check_with(&program, ""), (None, vec![]));
    let (error, notices) = check_with(&program, "-checkpoint=10m");
    assert_eq!(error, None);
    assert!(notices[0].contains("/p") && notices[0].contains("ignored"));
}

#[test]
fn the_resource_option_names_options_requests_and_paths() {
    let programs = [program_asking("/bin/x", |request| request.nodes = (2, 16))];
    let combined = intersect(&programs).unwrap();
    let assignment = HostAssignment { hosts: vec![HostSpec::local(4)] };
    let text = describe(
        &options("-resource,nodes=4"),
        &programs,
        &combined,
        &assignment,
        &["n".to_owned()],
    );
    let parts = ["options: resource nodes=4", "program: /bin/x", "nodes 2..16", "nodes: 4 (1x4)"];
    for part in parts.into_iter().chain(["networks: n"]) {
        assert!(text.contains(part), "{text}");
    }
}
