//! `::` runs one parallel process after the other on the same nodes. The second can read the files
//! of the first. The files are removed with the job.

use score_tests::TestEnv;

#[test]
fn elements_run_in_order() {
    let env = TestEnv::new();
    let line = "scrun -nodes=2 system sh -c 'sleep 0.3; echo first' :: system echo second";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.text(), "first\nfirst\nsecond\nsecond\n");
}

// Promise (use): A program can read files of an earlier program of its sequence; they are removed
// with the job.
#[test]
fn a_later_element_can_read_a_file_of_an_earlier_element() {
    let env = TestEnv::new();
    let line = "scrun -nodes=1 system echo hello =: note :: system cat := note";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.text(), "hello\n");
}

#[test]
fn each_of_several_writers_has_its_own_file() {
    let env = TestEnv::new();
    let line = "scrun -nodes=3 system sh -c 'echo from $SCORE_SELF_NODE' =: part \
                :: system cat := part";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["from 0", "from 1", "from 2"]);
}

#[test]
fn a_later_element_gets_no_input_of_scrun() {
    let env = TestEnv::new();
    let line = "echo input | scrun -nodes=1 system true :: system cat";
    assert_eq!(env.sh(line).run().expect_code(0).text(), "");
}

#[test]
fn a_sequence_can_consist_of_pipelines() {
    let env = TestEnv::new();
    let line = "scrun -nodes=2 system echo a == system tr a b :: system echo c == system tr c d";
    assert_eq!(env.sh(line).run().expect_code(0).text(), "b\nb\nd\nd\n");
}

#[test]
fn a_backslash_makes_an_operator_an_argument() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=1", "system", "echo", "\\==", "\\::", "\\=:"]).run();
    assert_eq!(outcome.expect_code(0).text(), "== :: =:\n");
}
