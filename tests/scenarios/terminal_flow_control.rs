//! The user types ^S while four nodes write without end. The writers block, and the memory of scrun
//! and scored stays small. After ^Q every byte arrives.

use std::time::{Duration, Instant};

use score_tests::TestEnv;
use score_tests::terminal::Terminal;

const LIMIT_KIB: u64 = 64 * 1024;
const LINES: usize = 1_200_000;

/// docs/dev/test-matrix.md promises ten seconds of held output. This test holds the output for
/// three seconds, or for `HARNESS_HOLD_SECONDS`.
fn hold_time() -> Duration {
    let seconds = std::env::var("HARNESS_HOLD_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

// Promise (output and input): While four nodes write and ^S stops the output for 10 s (CI: 3 s),
// scrun, scored and shepherd use less than 64 MiB; afterwards every byte arrives.
#[test]
fn a_stopped_terminal_uses_no_memory_and_loses_no_byte() {
    let env = TestEnv::new();
    // Node n writes the letter a+n. With -onlcr the terminal adds no bytes.
    let line = format!(
        "stty -onlcr; scrun -nodes=4,message=quiet system sh -c \
         'case $SCORE_SELF_NODE in 0) w=a;; 1) w=b;; 2) w=c;; 3) w=d;; esac; \
         yes $w$w$w$w$w$w$w | head -{LINES}'; echo the end"
    );
    let mut terminal = Terminal::open(&env, "sh", &["-c", &line]);
    let started_at = Instant::now();
    while terminal.bytes_shown() < 100_000 {
        assert!(started_at.elapsed() < Duration::from_secs(20), "{}", terminal.text());
        std::thread::sleep(Duration::from_millis(2));
    }
    terminal.type_keys("\x13");
    std::thread::sleep(Duration::from_millis(500));
    let stopped_len = terminal.bytes_shown();
    let stopped_at = Instant::now();
    let mut max_kib = 0;
    while stopped_at.elapsed() < hold_time() {
        let score_processes = env
            .processes()
            .into_iter()
            .filter(|process| process.is_scrun() || process.is_scored() || process.is_shepherd());
        max_kib = max_kib.max(score_processes.map(|process| process.resident_kib()).sum());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(terminal.bytes_shown(), stopped_len, "output after ^S");
    assert!(stopped_len < 4 * 8 * LINES, "everything had been shown before ^S");
    assert!(max_kib > 0 && max_kib < LIMIT_KIB, "{max_kib} KiB held");
    eprintln!("scrun, scored and its shepherd held {max_kib} KiB");
    terminal.type_keys("\x11");
    terminal.wait_for("the end", Duration::from_secs(60));
    let text = terminal.text();
    for letter in ['a', 'b', 'c', 'd'] {
        let full_line = letter.to_string().repeat(7);
        let count = text.lines().filter(|line| *line == full_line).count();
        assert_eq!(count, LINES, "lines of {letter}");
    }
    terminal.wait(Duration::from_secs(10));
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let env = TestEnv::new();
    let line = "scrun -nodes=4 system seq 200000 | (sleep 2; cat) | sort -n | uniq -c | \
                awk '$1 != 4 { bad++ } END { print NR, bad + 0 }'";
    assert_eq!(env.sh(line).run().expect_code(0).text(), "200000 0\n");
}
