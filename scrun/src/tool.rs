//! The options `tool` and `tool-arguments`: a tool that runs on every host before the first process
//! of the job. Debuggers put these options in front of the user's options.

use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::OsBytes;
use score_proto::tool_start::{ToolProgram, split_words};

use crate::options::ScrunOptions;
use crate::usage::StartError;

/// The tool that the options name, if any.
///
/// # Errors
/// If there are arguments without a tool, or more arguments than a tool may have.
pub fn from_options(options: &ScrunOptions) -> Result<Option<ToolProgram>, StartError> {
    let value = |key: &str| options.get(key).and_then(|given| given.value.clone());
    let arguments = value("tool-arguments").map(|text| split_words(&text)).transpose();
    let arguments = arguments.map_err(|line| StartError::plain(EXIT_USAGE, line))?;
    let Some(path) = value("tool") else {
        return match options.get("tool-arguments") {
            Some(given) => {
                Err(StartError::usage(given.position, "tool-arguments: -tool is missing"))
            }
            None => Ok(None),
        };
    };
    let arguments = arguments.unwrap_or_default();
    let arguments = arguments.into_iter().map(|word| OsBytes(word.into_bytes())).collect();
    let program = ToolProgram { path: OsBytes(path.into_bytes()), arguments };
    program.check().map_err(|line| StartError::plain(EXIT_USAGE, line))?;
    Ok(Some(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_need_a_tool_and_keep_their_commas() {
        let parse = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(Into::into).collect();
            let (options, count) = ScrunOptions::parse(&words, "".as_ref())?;
            Ok::<_, StartError>((from_options(&options)?, options.rank_environment(), count))
        };
        let words =
            ["--tool", "/bin/t", "--tool-arguments", "-a,b 'c d'", "-x", "A=1,2", "-nodes=2"];
        let (tool, variables, count) = parse(&words).unwrap();
        let tool = tool.unwrap();
        assert_eq!(tool.path.0, b"/bin/t");
        assert_eq!(tool.arguments, ["-a,b", "c d"].map(|word| OsBytes(word.into())));
        assert_eq!((variables, count), (vec![OsBytes(b"A=1,2".to_vec())], 7));
        let (_, variables, count) = parse(&["-x=B=c=d", "-nodes=2,x=E=f", "prog"]).unwrap();
        assert_eq!(variables, [OsBytes(b"B=c=d".to_vec()), OsBytes(b"E=f".to_vec())]);
        assert_eq!(count, 2);
        for (words, line) in [
            (&["-tool-arguments", "a"][..], "-tool is missing"),
            (&["-tool"], "the value is missing"),
            (&["-tool", "t", "--tool-arguments", "'a"], "the quote ' is not closed"),
            (&["-x", "A"], "NAME=VALUE is expected"),
            (&["-x", "=A"], "NAME=VALUE is expected"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(
                error.line.contains(line) && error.code == EXIT_USAGE,
                "{words:?}: {}",
                error.line
            );
        }
    }
}
