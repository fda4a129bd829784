use super::*;
use score_proto::message::HostSpec;
use std::ffi::{OsStr, OsString};

fn asked(path: &str, change: impl Fn(&mut Request)) -> Asked {
    let mut request = Request { library: true, ..Request::default() };
    change(&mut request);
    Asked { path: path.into(), request }
}

fn options(line: &str) -> Options {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    Options::parse(&words, OsStr::new("")).unwrap().0
}

fn checked(all: &[Asked], line: &str) -> (Option<String>, Vec<String>) {
    let mut notices = Vec::new();
    let result = check(all, &options(line), &mut |_, text| notices.push(text.to_owned()));
    (result.err().map(|refusal| refusal.line), notices)
}

#[test]
fn requests_of_several_programs_narrow_each_other() {
    let all = [
        asked("/a", |request| request.nodes = (1, 8)),
        asked("/b", |request| request.nodes = (4, 64)),
        asked("/c", |request| request.procs = Some(4)),
    ];
    let both = intersect(&all).unwrap();
    assert_eq!((both.nodes, both.procs), ((4, 8), Some(4)));
}

#[test]
fn programs_that_exclude_each_other_are_both_named() {
    let all = [
        asked("/any", |_| {}),
        asked("/few", |request| request.nodes = (1, 2)),
        asked("/many", |request| request.nodes = (4, 64)),
    ];
    let refusal = intersect(&all).unwrap_err();
    assert_eq!(refusal.code, 2);
    for part in ["/few and /many", "NUM_NODES(1, 2)", "NUM_NODES(4, 64)"] {
        assert!(refusal.line.contains(part), "{}", refusal.line);
    }
}

#[test]
fn what_every_network_has_and_several_networks_are_no_reason_to_refuse() {
    assert_eq!(checked(&[asked("/z", |request| request.zerocopy = true)], ""), (None, vec![]));
    assert_eq!(checked(&[asked("/two", |request| request.nets = 2)], ""), (None, vec![]));
}

#[test]
fn the_hetero_option_needs_the_macro() {
    let without = [asked("/p", |_| {})];
    assert!(checked(&without, "-hetero").0.unwrap().contains("SCORE_RSRC_HETERO_NODES"));
    let with = [asked("/p", |request| request.hetero = true)];
    assert_eq!(checked(&with, "-hetero"), (None, vec![]));
}

#[test]
fn nockpt_only_warns_and_only_with_the_checkpoint_option() {
    let program = [asked("/p", |request| request.nockpt = true)];
    assert_eq!(checked(&program, ""), (None, vec![]));
    let (error, notices) = checked(&program, "-checkpoint=10m");
    assert_eq!(error, None);
    assert!(notices[0].contains("/p") && notices[0].contains("ignored"));
}

#[test]
fn the_resource_option_names_options_requests_and_paths() {
    let all = [asked("/bin/x", |request| request.nodes = (2, 16))];
    let both = intersect(&all).unwrap();
    let chosen = Chosen { hosts: vec![HostSpec::this(4)] };
    let text = describe(&options("-resource,nodes=4"), &all, &both, &chosen, &["n".to_owned()]);
    let parts = ["options: resource nodes=4", "program: /bin/x", "nodes 2..16", "nodes: 4 (1x4)"];
    for part in parts.into_iter().chain(["networks: n"]) {
        assert!(text.contains(part), "{text}");
    }
}
