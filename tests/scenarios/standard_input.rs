//! The standard input of scrun and its end reach node 0 and no other node. scrun does not wait for
//! a program that does not read.

use score_tests::TestEnv;

// Promise (output and input): Node 0 gets all of standard input, and no other node gets any.
#[test]
fn node_zero_reads_all_input_and_other_nodes_get_end_of_file_at_once() {
    let env = TestEnv::new();
    let input = "x".repeat(1_000_000);
    let job = env.scrun(&["-nodes=3", "system", "sh", "-c", "echo $SCORE_SELF_NODE:$(wc -c)"]);
    let outcome = job.input(input).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["0:1000000", "1:0", "2:0"]);
}

#[test]
fn bytes_pass_unchanged() {
    let env = TestEnv::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let outcome =
        env.scrun(&["-nodes=1", "system", "cat"]).input(bytes.clone()).run().expect_code(0);
    assert!(outcome.stdout == bytes, "{} bytes came back", outcome.stdout.len());
}

#[test]
fn scrun_does_not_wait_for_a_program_that_does_not_read() {
    let env = TestEnv::new();
    let outcome = env.sh("yes | scrun -nodes=2 system echo done").run().expect_code(0);
    assert_eq!(outcome.text(), "done\ndone\n");
}

#[test]
fn an_open_but_silent_input_does_not_keep_scrun_running() {
    let env = TestEnv::new();
    let fifo = "mkfifo quiet; exec 3<>quiet; scrun -nodes=2 system echo done <quiet";
    let outcome = env.sh(fifo).run().expect_code(0);
    assert_eq!(outcome.text(), "done\ndone\n", "{outcome}");
}

#[test]
fn lines_arrive_while_the_input_stays_open() {
    let env = TestEnv::new();
    let line =
        "(echo one; until [ -e seen ]; do sleep 0.1; done; echo two) | scrun -nodes=1 system cat";
    let mut running = env.sh(line).start();
    running.wait_for("one", 1);
    env.write_file("seen", "");
    assert_eq!(running.wait().expect_code(0).text(), "one\ntwo\n");
}
