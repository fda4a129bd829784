//! The user types ^S while four nodes write without end: the writers are held, scrun and scored
//! stay small; after ^Q every byte arrives.

use std::time::{Duration, Instant};

use score_tests::Scene;
use score_tests::terminal::Terminal;

const LIMIT_KIB: u64 = 64 * 1024;
const LINES: usize = 1_200_000;

/// The soak holds for ten seconds, as the promise says; here three do.
fn hold() -> Duration {
    let seconds = std::env::var("HARNESS_HOLD_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(3))
}

#[test]
fn a_held_screen_costs_no_memory_and_loses_no_byte() {
    let scene = Scene::new();
    // Node n writes the letter a+n; -onlcr keeps the terminal from adding bytes.
    let line = format!(
        "stty -onlcr; scrun -nodes=4,message=quiet system sh -c \
         'case $SCORE_SELF_NODE in 0) w=a;; 1) w=b;; 2) w=c;; 3) w=d;; esac; \
         yes $w$w$w$w$w$w$w | head -{LINES}'; echo the end"
    );
    let mut terminal = Terminal::open(&scene, "sh", &["-c", &line]);
    let begin = Instant::now();
    while terminal.shown() < 100_000 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", terminal.text());
        std::thread::sleep(Duration::from_millis(2));
    }
    terminal.press("\x13");
    std::thread::sleep(Duration::from_millis(500));
    let held = terminal.shown();
    let begin = Instant::now();
    let mut largest = 0;
    while begin.elapsed() < hold() {
        let ours = scene
            .processes()
            .into_iter()
            .filter(|process| process.is_scrun() || process.is_scored() || process.is_shepherd());
        largest = largest.max(ours.map(|process| process.resident_kib()).sum());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(terminal.shown(), held, "the screen was held");
    assert!(held < 4 * 8 * LINES, "everything had been shown before ^S");
    assert!(largest > 0 && largest < LIMIT_KIB, "{largest} KiB held");
    eprintln!("scrun, scored and its shepherd held {largest} KiB");
    terminal.press("\x11");
    terminal.wait_for("the end", Duration::from_secs(60));
    let text = terminal.text();
    for letter in ['a', 'b', 'c', 'd'] {
        let whole = letter.to_string().repeat(7);
        let count = text.lines().filter(|line| *line == whole).count();
        assert_eq!(count, LINES, "lines of {letter}");
    }
    terminal.wait(Duration::from_secs(10));
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let scene = Scene::new();
    let line = "scrun -nodes=4 system seq 200000 | (sleep 2; cat) | sort -n | uniq -c | \
                awk '$1 != 4 { bad++ } END { print NR, bad + 0 }'";
    assert_eq!(scene.sh(line).run().expect(0).text(), "200000 0\n");
}
