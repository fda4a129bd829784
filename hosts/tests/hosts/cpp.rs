//! Compares the preprocessor with the compiler's own, because databases of SCore were written for
//! cpp(1).

use std::io::Write;
use std::process::{Command, Stdio};

use score_hosts::preprocess::lines;

const TEXTS: &[&str] = &[
    "/* PM */\n#define MSGB msgbserv=(serv.x.org:8764)\ncomp0 smp=2 MSGB // end\n\n  comp1\tMSGB\n",
    "#define CAT(a,b) a ## b\n#define HOST(n, g) CAT(comp,n).x.org group=g\n\
     HOST(0, pcc) \\\n   cores=4\nHOST( 1 ,all)\nHOST\nCAT (x, y)\n",
    "#define A B c\n#define B A d\nA B\n#undef A\nA B\n",
    "#define N 4\na rack=0.N,N N.x x.N N-N -N:file=/N/n 1N N1 _N\n",
    "#ifdef X\na\n#else\nb\n#endif\n#define X\n#ifdef X\nc X\n#endif\n#ifndef X\nd\n#endif\n",
    "#define ON 1\n#if ON\na\n#elif 1\nb\n#else\nc\n#endif\n#if !defined(ON)\nd\n#elif 0\n\
     e\n#else\nf\n#endif\n",
    "#define F() f\n#define G(x) F() x G(1)\nF F() G(F) G((a,b)) G(G(2))\n",
    "#if 0\n#if 1\n#define X y\n#else\n#endif\n#else\nX\n#endif\n",
    "#define LIST a,b\nx group=LIST network=LIST,c\n",
    "a/**/b c/* d */e\n// f \\\ng\nh\n",
];

fn compiler_lines(text: &str) -> Vec<String> {
    let mut child = Command::new("gcc")
        .args(["-E", "-P", "-undef", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}");
    words(&String::from_utf8(output.stdout).unwrap())
}

/// gcc inserts blanks between tokens that must stay separate, so blanks are ignored here.
fn words(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<String>());
    lines.filter(|line| !line.is_empty()).collect()
}

// Promise of `the_names_of_score_5_are_understood`.
#[test]
fn lines_match_those_of_the_compilers_preprocessor() {
    for text in TEXTS {
        let read_nothing = |_: &std::path::Path| Err(std::io::ErrorKind::NotFound.into());
        let ours = lines("db", text.as_bytes(), &read_nothing).unwrap();
        let line = |words: &Vec<_>| {
            words.iter().map(|word: &score_hosts::preprocess::Word| word.text.as_str()).collect()
        };
        let ours: Vec<String> = ours.iter().map(line).collect();
        assert_eq!(ours, compiler_lines(text), "{text}");
    }
}
