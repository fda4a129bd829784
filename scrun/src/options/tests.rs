use super::*;
use proptest::prelude::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn parse(line: &str, environment: &str) -> Result<(ScrunOptions, usize), StartError> {
    ScrunOptions::parse(&words(line), OsStr::new(environment))
}

/// The message as the user sees it, without `scrun: `.
fn error_text(line: &str, environment: &str) -> String {
    let error = parse(line, environment).expect_err(line);
    assert_eq!(error.code, 2);
    let context = error.context(&words(line), OsStr::new(environment)).unwrap();
    format!("{}\n{context}", error.line)
}

fn pairs(line: &str, environment: &str) -> Vec<(String, Option<String>)> {
    parse(line, environment).unwrap().0.pairs()
}

#[test]
fn options_end_at_the_first_word_without_a_minus() {
    let (options, word_count) = parse("-nodes=2,size=4 -wait a.out -nodes=3", "").unwrap();
    assert_eq!(word_count, 2);
    let keys: Vec<&str> = options.given.iter().map(|given| given.key.as_str()).collect();
    assert_eq!(keys, ["nodes", "size", "wait"]);
}

#[test]
fn the_leftmost_of_equal_keys_is_used_and_the_environment_is_used_last() {
    let (options, _) = parse("-nodes=2,nodes=3 -nodes=4 a", "nodes=5,message=quiet").unwrap();
    assert_eq!(options.get("nodes").unwrap().value.as_deref(), Some("2"));
    assert_eq!(options.level(), Level::Error);
    assert_eq!(options.given.len(), 5);
    let (options, _) = parse("-message=concise a", "message=quiet").unwrap();
    assert_eq!(options.level(), Level::Warning);
    let (options, _) = parse("-message a", "message=quiet").unwrap();
    assert_eq!(options.level(), Level::Info);
}

#[test]
fn the_keys_of_the_program_itself_pass_with_and_without_value() {
    let given = pairs("-colour=red,verbose,empty=,eq=a=b a", "depth=3");
    let pair = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
    assert_eq!(
        given,
        [
            pair("colour", Some("red")),
            pair("verbose", None),
            pair("empty", Some("")),
            pair("eq", Some("a=b")),
            pair("depth", Some("3"))
        ]
    );
}

#[test]
fn errors_are_shown_with_a_caret_under_the_faulty_word() {
    for (line, expected) in [
        (
            "-node=4 a.out",
            "-node: unknown option; did you mean '-nodes'?\n  scrun -node=4 a.out\n         ^",
        ),
        (
            "-nodes=2,mesage=quiet a",
            "-mesage: unknown option; did you mean '-message'?\n  scrun -nodes=2,mesage=quiet a\n                 ^",
        ),
        ("-np 4 a", "-np: unknown option; did you mean '-nodes=N'?\n  scrun -np 4 a\n         ^"),
        ("-n=4 a", "-n: unknown option; did you mean '-nodes=N'?\n  scrun -n=4 a\n         ^"),
        ("-nodes= a", "-nodes=: the value is empty\n  scrun -nodes= a\n               ^"),
        (
            "-nodes=x a",
            "-nodes=x: '' is not a number of processes per host (N or HxP is expected)\n  scrun -nodes=x a\n               ^",
        ),
        (
            "-network a",
            "-network: the value is missing (network=NAME[+NAME] is expected)\n  scrun -network a\n                ^",
        ),
        ("-wait=1 a", "-wait: this option takes no value\n  scrun -wait=1 a\n             ^"),
        (
            "-wait,,debug a",
            "the name of an option is empty (-key=value,key,... is expected)\n  scrun -wait,,debug a\n              ^",
        ),
        (
            "- a",
            "the name of an option is empty (-key=value,key,... is expected)\n  scrun - a\n         ^",
        ),
        (
            "-=4 a",
            "the name of an option is empty (-key=value,key,... is expected)\n  scrun -=4 a\n         ^",
        ),
        ("--help", "--help: unknown option; did you mean '-help'?\n  scrun --help\n         ^"),
        (
            "-wait -priority=16 a",
            "-priority=16: '16' is not a number from 0 to 15\n  scrun -wait -priority=16 a\n                        ^",
        ),
    ] {
        assert_eq!(error_text(line, ""), expected, "{line}");
    }
}

#[test]
fn errors_in_score_options_point_into_its_value() {
    for (value, expected) in [
        (
            "-nodes=4",
            "SCORE_OPTIONS: options here begin without a minus\n  SCORE_OPTIONS=-nodes=4\n                ^",
        ),
        (
            "nodes=4, wait",
            "SCORE_OPTIONS: contains a blank\n  SCORE_OPTIONS=nodes=4, wait\n                        ^",
        ),
        (
            "wait,nodes=0",
            "SCORE_OPTIONS: nodes=0: 0 nodes cannot run anything\n  SCORE_OPTIONS=wait,nodes=0\n                           ^",
        ),
    ] {
        assert_eq!(error_text("a", value), expected, "{value}");
    }
}

#[test]
fn every_option_of_the_manual_is_accepted_with_a_valid_value() {
    let line = "-nodes=2x2.i386.a.b,network=ethernet+shmem0,priority=3,monitor=ALL,debug=2,\
                stat=detail,statistics=all,scored=host,group=pcc,file=hosts,restart,\
                checkpoint=10m,cpulimit=4,memorylimit=100,disklimit=100,wait,message=concise,\
                resource,noidle,hetero";
    let (options, _) = parse(line, "").unwrap();
    assert!(options.given.iter().all(|given| table::find(&given.key).is_some()));
    assert_eq!(
        options.without_effect(false).join(" "),
        "priority restart checkpoint memorylimit disklimit wait"
    );
    let multi_user = options.without_effect(true).join(" ");
    assert_eq!(multi_user, "restart checkpoint");
}

#[test]
fn each_option_without_effect_is_named_once() {
    let (options, _) = parse("-wait,wait -nodes=2", "wait").unwrap();
    assert_eq!(options.without_effect(false), ["wait"]);
}

#[test]
fn options_of_scored_are_forwarded() {
    let (options, _) = parse("-rate=200mbit,nodes=2 -links=2,start=ssh", "start=slurm").unwrap();
    assert_eq!(options.scored_args().join(" "), "-start ssh -links 2 -rate 200mbit");
    assert!(parse("-start=telnet", "").is_err());
}

#[test]
fn stat_and_statistics_are_one_option() {
    let statistics_of = |line: &str| parse(line, "").unwrap().0.statistics();
    assert_eq!(statistics_of(""), Statistics::Off);
    assert_eq!(statistics_of("-stat"), Statistics::Summary);
    assert_eq!(statistics_of("-statistics=all"), Statistics::Detail);
    assert_eq!(statistics_of("-stat,statistics=detail"), Statistics::Summary);
}

proptest! {
    #[test]
    fn no_words_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz_options(&bytes);
    }

    #[test]
    fn no_nearly_valid_words_make_the_parser_panic(text in "(-|)((nodes|stat|wait|x|,|=|\\.|[0-9]{1,9}|é|\n)){0,9}") {
        crate::fuzz_options(text.as_bytes());
    }

    #[test]
    fn accepted_options_read_the_same_from_the_environment(text in "[a-z]{1,9}(=[a-z0-9]{0,4})?(,[a-z]{1,9}(=[a-z0-9]{1,4})?){0,3}") {
        // A word option keeps its commas on the command line; SCORE_OPTIONS divides at each one.
        prop_assume!(super::word_option(text.as_bytes()).is_none());
        let line = parse(&format!("-{text}"), "").map(|(options, _)| options.pairs());
        let environment = parse("", &text).map(|(options, _)| options.pairs());
        prop_assert_eq!(line.ok(), environment.ok());
    }
}
