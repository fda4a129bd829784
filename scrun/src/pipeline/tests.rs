use super::*;
use proptest::prelude::*;

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

/// Formats a job like a Unix shell line: `;` separates stages, and `|` separates elements.
fn job_text(line: &str) -> String {
    let element = |element: &Element| {
        let mut out: Vec<String> = element
            .words
            .iter()
            .map(|word| String::from_utf8_lossy(&word.text).into_owned())
            .collect();
        let name = |file: &FileName| String::from_utf8_lossy(&file.0.0).into_owned();
        if let Input::File(file) = &element.input {
            out.push(format!("<{}", name(file)));
        }
        if let Output::File { name: file, append } = &element.output {
            out.push(format!("{}{}", if *append { ">>" } else { ">" }, name(file)));
        }
        out.join(" ")
    };
    let stage = |stage: &Vec<Element>| stage.iter().map(element).collect::<Vec<_>>().join(" | ");
    let stages = parse(&words(line), 0).unwrap_or_else(|error| panic!("{line}: {error:?}"));
    stages.iter().map(stage).collect::<Vec<_>>().join(" ; ")
}

fn error_text(line: &str) -> String {
    let error = parse(&words(line), 0).expect_err(line);
    assert_eq!(error.code, 2);
    let context = error.context(&words(line), OsStr::new("")).unwrap();
    format!("{}\n{context}", error.line)
}

#[test]
fn operators_join_programs() {
    for (line, expected) in [
        ("a", "a"),
        ("a -x b", "a -x b"),
        ("scatter == a.out 1", "scatter | a.out 1"),
        ("a :: b == c :: d", "a ; b | c ; d"),
        ("a := in", "a <in"),
        ("a := /abs/in x", "a x </abs/in"),
        ("a =: out", "a >out"),
        ("a =:: out", "a >>out"),
        ("a :=: out", "a >>out"),
        ("a := in == b =: out :: c :=: out", "a <in | b >out ; c >>out"),
        ("a := in =: out", "a <in >out"),
        ("a === = : ::: =:=", "a === = : ::: =:="),
    ] {
        assert_eq!(job_text(line), expected);
    }
}

#[test]
fn one_backslash_makes_an_operator_literal() {
    for (line, expected) in [
        (r"a \== \:: \:= \=: \=:: \:=:", "a == :: := =: =:: :=:"),
        (r"a \\== \\\::", r"a \== \\::"),
        (r"a \x \ \=", r"a \x \ \="),
        (r"\== x", "== x"),
        (r"a =: \==", "a >=="),
    ] {
        assert_eq!(job_text(line), expected);
    }
}

#[test]
fn errors_are_shown_with_a_caret_under_the_faulty_word() {
    for (line, expected) in [
        ("== a", "'==': no program in front of it\n  scrun == a\n        ^"),
        (":: a", "'::': no program in front of it\n  scrun :: a\n        ^"),
        ("a ==", "'==': no program after it\n  scrun a ==\n          ^"),
        ("a b ::", "'::': no program after it\n  scrun a b ::\n            ^"),
        ("a == == b", "'==': no program in front of it\n  scrun a == == b\n             ^"),
        ("a == :: b", "'::': no program in front of it\n  scrun a == :: b\n             ^"),
        ("a :=", "':=': the file name is missing\n  scrun a :=\n          ^"),
        ("a =: == b", "'=:': the file name is missing\n  scrun a =: == b\n          ^"),
        (":= f a", "':=': no program in front of it\n  scrun := f a\n        ^"),
        (
            "a =: b/c",
            "'=: b/c': a file name is a base name or an absolute path, never a relative path\n  scrun a =: b/c\n             ^",
        ),
        ("a := ..", "':= ..': the file name is a directory\n  scrun a := ..\n             ^"),
        (
            "a =: f =:: g",
            "'=::': the program has =: already\n  scrun a =: f =:: g\n               ^",
        ),
        (
            "a == b := f",
            "':=': only the first program of a pipeline can read from a file\n  scrun a == b := f\n               ^",
        ),
        (
            "a =: f == b",
            "'=:': only the last program of a pipeline can write to a file\n  scrun a =: f == b\n          ^",
        ),
    ] {
        assert_eq!(error_text(line), expected);
    }
}

#[test]
fn a_missing_program_is_shown_after_the_options() {
    let line = words("-nodes=2");
    let error = parse(&line, 1).unwrap_err();
    assert_eq!(
        error.context(&line, OsStr::new("")).unwrap(),
        "  scrun -nodes=2\n                 ^"
    );
}

#[test]
fn empty_words_are_arguments_but_no_programs_and_no_files() {
    let word = |text: &str| OsString::from(text);
    assert_eq!(parse(&[word("a"), word("")], 0).unwrap()[0][0].words.len(), 2);
    assert!(parse(&[word("")], 0).unwrap_err().line.contains("program is empty"));
    let empty_file = [word("a"), word("=:"), word("")];
    assert!(parse(&empty_file, 0).unwrap_err().line.contains("file name is empty"));
}

#[test]
fn words_keep_their_index_on_the_command_line() {
    let line = words("-nodes=2 a x == b");
    let stages = parse(&line, 1).unwrap();
    let indices: Vec<usize> = stages[0].iter().map(|element| element.words[0].index).collect();
    assert_eq!(indices, [1, 4]);
}

proptest! {
    #[test]
    fn no_words_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        crate::fuzz_pipeline(&bytes);
    }

    #[test]
    fn no_nearly_valid_job_makes_the_parser_panic(text in "(a|/f|b/c|\\\\|==|::|:=|=:|=::|:=:|\n){0,12}") {
        crate::fuzz_pipeline(text.as_bytes());
    }

    #[test]
    fn any_word_can_be_passed_literally(word in "\\\\{0,3}(==|::|:=|=:|=::|:=:|[a=:]{0,3})") {
        let line = [OsString::from("p"), OsString::from(OsStr::from_bytes(&escape(word.as_bytes())))];
        let stages = parse(&line, 0).unwrap();
        prop_assert_eq!(&stages[0][0].words[1].text, word.as_bytes());
    }

    #[test]
    fn an_accepted_job_reads_the_same_when_written_again(
        text in "a( (a|x|=: f|:= /g|== b|:: c|\\\\==)){0,6}"
    ) {
        if let Ok(stages) = parse(&words(&text), 0) {
            let reparsed = parse(&to_words(&stages), 0).unwrap();
            prop_assert_eq!(without_indices(&reparsed), without_indices(&stages));
        }
    }
}

/// The words that specify a job.
fn to_words(stages: &Stages) -> Vec<OsString> {
    let mut line: Vec<OsString> = Vec::new();
    for (s, stage) in stages.iter().enumerate() {
        line.extend((s > 0).then(|| "::".into()));
        for (e, element) in stage.iter().enumerate() {
            line.extend((e > 0).then(|| "==".into()));
            let escaped = |word: &Word| OsStr::from_bytes(&escape(&word.text)).into();
            line.extend(element.words.iter().map(escaped));
            if let Input::File(file) = &element.input {
                line.extend([":=".into(), OsStr::from_bytes(&file.0.0).into()]);
            }
            if let Output::File { name, append } = &element.output {
                let operator = if *append { "=::" } else { "=:" };
                line.extend([operator.into(), OsStr::from_bytes(&name.0.0).into()]);
            }
        }
    }
    line
}

/// A job without the indices of its words.
fn without_indices(stages: &Stages) -> Stages {
    let mut stages = stages.clone();
    let words = stages.iter_mut().flatten().flat_map(|element| &mut element.words);
    words.for_each(|word| word.index = 0);
    stages
}
