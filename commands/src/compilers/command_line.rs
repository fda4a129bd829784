//! The command line of a compiler wrapper. The wrapper's options are removed. All other words are
//! passed on in order.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WrapperArgs {
    /// `-script`: the wrapper whose settings apply.
    pub script: Option<String>,
    /// `-compiler`: the name in the compiler list.
    pub compiler: Option<String>,
    /// `-compiler-path`: the path of the compiler.
    pub compiler_path: Option<OsString>,
    /// `-nostatic`.
    pub nostatic: bool,
    /// `-nockpt` or `-nocheckpoint`, as the user wrote it.
    pub nockpt: Option<String>,
    /// `-show`.
    pub show: bool,
    /// Words that are not options of the wrapper.
    pub compiler_args: Vec<OsString>,
    /// The command line names a file to compile or link.
    has_input: bool,
    /// An option says that no program is linked, or that the program must not contain SCore's
    /// libraries.
    stops_before_link: bool,
}

/// The reason why the compiler is not run.
#[derive(Debug, PartialEq, Eq)]
pub enum ParseStop {
    /// `-help` was given.
    HelpRequested,
    /// An option of the wrapper is invalid.
    Invalid(String),
}

/// Options of compilers whose value is the next word. That word is then not an input file.
const OPTIONS_WITH_VALUE: &[&str] = &[
    "-o",
    "-I",
    "-L",
    "-D",
    "-U",
    "-x",
    "-l",
    "-include",
    "-imacros",
    "-isystem",
    "-idirafter",
    "-iquote",
    "-iprefix",
    "-iwithprefix",
    "-isysroot",
    "--sysroot",
    "-MF",
    "-MT",
    "-MQ",
    "-Xlinker",
    "-Xassembler",
    "-Xpreprocessor",
    "-Xclang",
    "-T",
    "-u",
    "-z",
    "-e",
    "-A",
    "-B",
    "-J",
    "--param",
    "-target",
    "-wrapper",
    "-aux-info",
    "-dumpbase",
    "-dumpdir",
];

/// Options with which no program is linked. A shared library (-shared) uses the libscore of the
/// program that loads it, because a process must not have two copies of PM.
const NO_LINK_OPTIONS: &[&str] = &[
    "-c",
    "-S",
    "-E",
    "-M",
    "-MM",
    "-fsyntax-only",
    "-r",
    "-shared",
    "--version",
    "--target-help",
];

impl WrapperArgs {
    /// Parses the words after the command's name.
    pub fn parse(words: Vec<OsString>) -> Result<Self, ParseStop> {
        let mut args = WrapperArgs::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            args.parse_word(word, &mut words)?;
        }
        Ok(args)
    }

    fn parse_word(
        &mut self,
        word: OsString,
        rest: &mut dyn Iterator<Item = OsString>,
    ) -> Result<(), ParseStop> {
        let text = word.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        match (name, text.as_str()) {
            ("-script", _) => self.script = Some(utf8(value(&word, name, rest)?, name)?),
            ("-compiler", _) => self.compiler = Some(utf8(value(&word, name, rest)?, name)?),
            ("-compiler-path", _) => self.compiler_path = Some(value(&word, name, rest)?),
            (_, "-nostatic") => self.nostatic = true,
            (_, "-nockpt" | "-nocheckpoint") => self.nockpt = Some(text),
            (_, "-show") => self.show = true,
            (_, "-help" | "--help") => return Err(ParseStop::HelpRequested),
            (_, "-scash" | "-scash_smp") => {
                let reason = "SCASH, the distributed shared memory, is not part of this SCore; \
                           OpenMP programs run on one host with the compiler's own -fopenmp";
                return Err(ParseStop::Invalid(format!("{text}: {reason}")));
            }
            _ => {
                self.has_input |= !text.starts_with('-') || text == "-" || text.starts_with("-l");
                self.stops_before_link |= NO_LINK_OPTIONS.contains(&text.as_str());
                self.compiler_args.push(word);
                if OPTIONS_WITH_VALUE.contains(&text.as_str()) {
                    self.compiler_args.extend(rest.next());
                }
            }
        }
        Ok(())
    }

    /// Whether the compiler will link a program.
    pub fn will_link(&self) -> bool {
        self.has_input && !self.stops_before_link
    }
}

/// The value of one of the wrapper's options: the text after `=`, or the next word.
fn value(
    word: &OsString,
    name: &str,
    rest: &mut dyn Iterator<Item = OsString>,
) -> Result<OsString, ParseStop> {
    let bytes = word.as_bytes();
    let value = match bytes.get(name.len()) {
        Some(b'=') => Some(OsString::from_vec(bytes[name.len() + 1..].to_vec())),
        _ => rest.next(),
    };
    match value {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(ParseStop::Invalid(format!("{name} needs a value"))),
    }
}

fn utf8(value: OsString, name: &str) -> Result<String, ParseStop> {
    value.into_string().map_err(|value| {
        ParseStop::Invalid(format!("{name}: {} is not a name", value.to_string_lossy()))
    })
}

/// The output of `-help`.
pub fn usage(script: &str) -> String {
    format!(
        "\
usage: {script} [option | file]...
Runs a compiler with the headers and libraries of SCore. Options of this command:
  -compiler NAME        use this compiler of `score_compiler_list -script {script}`
  -compiler-path PATH   run this compiler
  -script SCRIPT        choose the compiler as SCRIPT does
  -nostatic             link libscore.so and libpm.so (default: libscore.a)
  -nockpt, -nocheckpoint  accepted; no effect yet
  -show                 also print the command line of the compiler
  -help                 print this text
-compiler, -compiler-path and -script also take their value after `=`. All other options are the
compiler's. Environment: SCORE_BUILD_COMPILERS, SCORE_COMPILERS. See {script}(1).
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> WrapperArgs {
        WrapperArgs::parse(words.iter().map(OsString::from).collect()).unwrap()
    }

    fn parse_error(words: &[&str]) -> String {
        match WrapperArgs::parse(words.iter().map(OsString::from).collect()) {
            Err(ParseStop::Invalid(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_of_the_compiler_are_passed_on_in_order() {
        let args = parse(&["-O2", "-compiler", "clang", "-o", "-show", "a.c", "-nostatic", "-lm"]);
        assert_eq!(args.compiler_args, ["-O2", "-o", "-show", "a.c", "-lm"]);
        assert_eq!(args.compiler.as_deref(), Some("clang"));
        assert!(args.nostatic && !args.show && args.will_link());
    }

    #[test]
    fn values_are_after_an_equals_sign_or_in_the_next_word() {
        let args = parse(&["-script=scoref90", "-compiler-path", "/opt/a=b/cc", "-compiler=gnu"]);
        assert_eq!(args.script.as_deref(), Some("scoref90"));
        assert_eq!(args.compiler_path, Some("/opt/a=b/cc".into()));
        assert_eq!(args.compiler.as_deref(), Some("gnu"));
        for option in ["-script", "-compiler=", "-compiler-path"] {
            assert!(parse_error(&[option]).contains(option.trim_end_matches('=')));
        }
    }

    #[test]
    fn no_program_is_linked_without_input_or_with_a_no_link_option() {
        for words in [
            &["-c", "a.c"][..],
            &["a.c", "-E"],
            &["-v"],
            &["-o", "a.c"],
            &["-shared", "a.o"],
            &["-print-search-dirs"],
        ] {
            assert!(!parse(words).will_link(), "{words:?}");
        }
        for words in [&["a.o"][..], &["-x", "c", "-"], &["-o", "a", "-lfoo"]] {
            assert!(parse(words).will_link(), "{words:?}");
        }
    }

    #[test]
    fn scash_is_refused_and_similar_options_are_passed_on() {
        assert!(parse_error(&["-scash", "a.c"]).starts_with("-scash:"));
        assert!(parse_error(&["a.c", "-scash_smp"]).starts_with("-scash_smp:"));
        let like = ["-nostdlib", "-compile", "-compiler-pathological", "-shower", "-scripted=1"];
        assert_eq!(parse(&like).compiler_args, like);
    }
}
