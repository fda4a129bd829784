//! The output of score_compiler_list(8).

use super::Error;
use super::install_paths::InstallPaths;
use super::list::{Compilers, ListError};

/// The text of `-help`.
pub const USAGE: &str = "\
usage: score_compiler_list -script SCRIPT [-check] [-path] [-noalias] [-default]
       score_compiler_list -env ENVIRONMENT [-check] [-path] [-noalias]
       score_compiler_list -all [-check] [-path] [-noalias]
Lists the compilers for -compiler of scorecc and the other wrappers, the default first.
  -path     also print the command     -check    print whether the compiler is installed
  -noalias  omit aliases               -default  print the default only
ENVIRONMENT is score or mpi. See score_compiler_list(8).
";

/// The scripts whose compilers are listed.
#[derive(Debug, PartialEq, Eq)]
enum CompilerFilter {
    Script(String),
    Environment(String),
    All,
}

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub struct ListArgs {
    filter: CompilerFilter,
    check: bool,
    path: bool,
    noalias: bool,
    default: bool,
}

impl ListArgs {
    /// Parses the words after the command's name. The error is a message for the user.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut filter = None;
        let (mut check, mut path, mut noalias, mut default) = (false, false, false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let chosen = match word.as_str() {
                "-script" => {
                    CompilerFilter::Script(words.next().ok_or("-script needs a script")?.clone())
                }
                "-env" => CompilerFilter::Environment(
                    words.next().ok_or("-env needs an environment")?.clone(),
                ),
                "-all" => CompilerFilter::All,
                option => {
                    let flag = match option {
                        "-check" => &mut check,
                        "-path" => &mut path,
                        "-noalias" => &mut noalias,
                        "-default" => &mut default,
                        _ => return Err(format!("unknown option {option:?}")),
                    };
                    *flag = true;
                    continue;
                }
            };
            if filter.replace(chosen).is_some() {
                return Err(format!("{word}: only one of -script, -env and -all"));
            }
        }
        let filter = filter.ok_or("one of -script, -env and -all is required")?;
        if default && !matches!(filter, CompilerFilter::Script(_)) {
            return Err("-default is valid only with -script".into());
        }
        Ok(Self { filter, check, path, noalias, default })
    }

    /// The lines to print. If there are several scripts, each line begins with its script and a
    /// colon.
    pub fn lines(
        &self,
        compilers: &Compilers,
        installed: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Error> {
        let scripts: Vec<&str> = match &self.filter {
            CompilerFilter::Script(script) => vec![script],
            CompilerFilter::Environment(name) => compilers.environment(name)?,
            CompilerFilter::All => compilers.scripts().collect(),
        };
        let mut lines = Vec::new();
        for script in scripts {
            let prefix = match self.filter {
                CompilerFilter::Script(_) => String::new(),
                _ => format!("{script}: "),
            };
            let script_lines = self.script_lines(script, compilers, &installed)?;
            lines.extend(script_lines.into_iter().map(|line| prefix.clone() + &line));
        }
        Ok(lines)
    }

    fn script_lines(
        &self,
        script: &str,
        compilers: &Compilers,
        installed: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, ListError> {
        let mut entries = compilers.for_script(script, !self.noalias)?;
        if self.default {
            entries.truncate(1);
        }
        let line = |(name, path): (&str, &str)| {
            let path_part = if self.path { format!(":{path}") } else { String::new() };
            let check = match (self.check, installed(path)) {
                (false, _) => "",
                (true, true) => " ok",
                (true, false) => " not found",
            };
            format!("{name}{path_part}{check}\n")
        };
        Ok(entries.into_iter().map(line).collect())
    }
}

/// Loads the list of the wrappers that are installed with this command.
pub fn load() -> Result<Compilers, Error> {
    Ok(Compilers::load(InstallPaths::find()?.site_file())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(words: &str) -> String {
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        let compilers = Compilers::built_in(|_| false);
        let list_args = ListArgs::parse(&words).unwrap();
        list_args.lines(&compilers, |command| command != "clang").unwrap().concat()
    }

    #[test]
    fn the_list_of_one_script_has_the_format_of_the_manual() {
        assert_eq!(lines("-script scorecc"), "gnu\nclang\n");
        assert_eq!(lines("-script scorecc -path"), "gnu:gcc\nclang:clang\n");
        assert_eq!(lines("-script scorecc -default -path"), "gnu:gcc\n");
        assert_eq!(lines("-script scorecc -check"), "gnu ok\nclang not found\n");
    }

    #[test]
    fn lines_of_several_scripts_begin_with_the_script() {
        assert!(lines("-all").starts_with("scorecc: gnu\nscorecc: clang\nscorec++: gnu\n"));
        assert_eq!(lines("-env score"), lines("-all"));
        assert_eq!(lines("-env mpi"), "");
    }

    #[test]
    fn invalid_option_combinations_are_reported() {
        for (words, expected) in [
            (&["-script"][..], "-script"),
            (&["-all", "-env", "score"], "-env"),
            (&["-all", "-default"], "-default"),
            (&["-all", "-chek"], "-chek"),
            (&[], "-script, -env and -all"),
        ] {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            let reason = ListArgs::parse(&words).unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
