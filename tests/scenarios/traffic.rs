//! All messages of random sizes between several nodes arrive, unchanged and in order. This also
//! holds if there are more nodes than processors, or if the receivers sleep.

use score_tests::TestEnv;

fn run(nodes: usize, messages: usize, extra_args: &[&str]) {
    let env = TestEnv::new();
    let Some(program) = env.test_program("traffic") else { return };
    let option = format!("-nodes={nodes}");
    let (program, messages) = (program.to_str().unwrap(), messages.to_string());
    let mut args = vec![option.as_str(), program, messages.as_str(), "4711"];
    args.extend(extra_args);
    let outcome = env.scrun(&args).run().expect_code(0);
    assert_eq!(outcome.text(), "all in order\n".repeat(nodes), "{outcome}");
}

#[test]
fn two_nodes_exchange_all_messages_in_order() {
    run(2, 200_000, &[]);
}

// Promise of `messages_of_every_length_arrive_whole_and_in_order`.
#[test]
fn five_nodes_exchange_all_messages_in_order() {
    run(5, 20_000, &[]);
}

// Promise of `a_blocked_receiver_never_misses_a_message`.
#[test]
fn sleeping_receivers_are_woken_every_time() {
    run(2, 20_000, &["block"]);
    run(4, 10_000, &["block"]);
}

// Promise of `messages_of_every_length_arrive_whole_and_in_order`.
#[test]
fn sixteen_nodes_on_few_processors_make_progress() {
    run(16, 2_000, &[]);
}
