//! Output goes into a file and input comes from one, as the manual's table 1.5 has it.

use score_tests::Scene;

#[test]
fn an_absolute_name_gets_the_first_process_of_the_host_only() {
    let scene = Scene::new();
    let file = scene.dir().join("out");
    let name = file.to_str().unwrap();
    let job = scene.scrun(&["-nodes=3", "system", "sh", "-c", "echo $SCORE_SELF_NODE", "=:", name]);
    assert_eq!(job.run().expect(0).text(), "");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "0\n");
}

#[test]
fn append_has_two_spellings() {
    let scene = Scene::new();
    let file = scene.dir().join("log");
    let name = file.to_str().unwrap();
    for (operator, word) in [("=:", "one"), ("=::", "two"), (":=:", "three")] {
        let _ = scene.scrun(&["-nodes=1", "system", "echo", word, operator, name]).run().expect(0);
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "one\ntwo\nthree\n");
}

#[test]
fn input_from_an_absolute_file_goes_to_every_node() {
    let scene = Scene::new();
    let file = scene.file("in", "three short words\n");
    let job = scene.scrun(&["-nodes=3", "system", "wc", "-w", ":=", file.to_str().unwrap()]);
    assert_eq!(job.run().expect(0).sorted(), ["3", "3", "3"]);
}

#[test]
fn a_missing_input_file_is_named_with_its_host() {
    let scene = Scene::new();
    let outcome = scene.scrun(&["-nodes=2", "system", "cat", ":=", "/no/such/file"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.says(&["/no/such/file"]);
    let outcome = scene.scrun(&["-nodes=2", "system", "cat", ":=", "nowhere"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.says(&["nowhere"]);
}

#[test]
fn an_output_file_that_cannot_be_opened_is_named() {
    let scene = Scene::new();
    let outcome =
        scene.scrun(&["-nodes=2", "system", "echo", "x", "=:", "/no/such/folder/f"]).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.says(&["/no/such/folder/f"]);
}
