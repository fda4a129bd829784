//! The backend compilers of each wrapper: a built-in list, and the additions of a site in
//! PREFIX/etc/compilers/site. The format is that of SCore 7's compilers(5): lines
//! `SCRIPT COMPILER[=PATH]…` with the default compiler first, lines `alias NAME COMPILER`, and
//! comments after `#`.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The wrappers, in the order in which they are listed.
pub const SCRIPTS: [&str; 5] = ["scorecc", "scorec++", "scoref77", "scoref90", "scoreld"];

/// The name of a compiler, and its command.
type CompilerEntry = (&'static str, &'static str);

/// For each wrapper, the compilers that are always listed, and the compilers that are listed only
/// if they are installed.
const BUILT_IN: [(&str, &[CompilerEntry], &[CompilerEntry]); 5] = [
    ("scorecc", &[("gnu", "gcc"), ("clang", "clang")], &[("pgi", "pgcc"), ("intel", "icx")]),
    ("scorec++", &[("gnu", "g++"), ("clang", "clang++")], &[("pgi", "pgc++"), ("intel", "icpx")]),
    ("scoref77", &[("gnu", "gfortran")], &[("pgi", "pgf77"), ("intel", "ifx")]),
    ("scoref90", &[("gnu", "gfortran")], &[("pgi", "pgf90"), ("intel", "ifx")]),
    ("scoreld", &[("gnu", "gcc"), ("clang", "clang")], &[("pgi", "pgcc"), ("intel", "icx")]),
];

/// An error of the compiler list.
#[derive(Debug, Error)]
pub enum ListError {
    /// The site's file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// A line of the site's file is invalid.
    #[error("{0}:{1}: {2}")]
    Line(PathBuf, usize, String),
    /// There is no such script.
    #[error("unknown script {0:?} (valid: {1})")]
    Script(String, String),
    /// There is no such environment.
    #[error("unknown environment {0:?} (valid: score, mpi)")]
    Environment(String),
    /// The script has no such compiler.
    #[error("{0}: {1} has no compiler {2:?} (valid: {3})")]
    Compiler(&'static str, String, String, String),
}

/// The compiler list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compilers {
    /// Each script, with its compilers as (name, path). The default comes first.
    scripts: Vec<(String, Vec<(String, String)>)>,
    /// Each alias, with the name of its compiler.
    aliases: Vec<(String, String)>,
}

impl Compilers {
    /// The built-in list. `installed` returns whether a command exists.
    pub fn built_in(installed: impl Fn(&str) -> bool) -> Self {
        let pair = |&(name, path): &CompilerEntry| (name.to_string(), path.to_string());
        let scripts = BUILT_IN.iter().map(|(script, always, optional)| {
            let optional = optional.iter().filter(|(_, path)| installed(path));
            (script.to_string(), always.iter().chain(optional).map(pair).collect())
        });
        Self { scripts: scripts.collect(), aliases: Vec::new() }
    }

    /// The built-in list and the site's file, if there is one.
    pub fn load(site: PathBuf) -> Result<Self, ListError> {
        let mut list = Self::built_in(is_installed);
        match std::fs::read_to_string(&site) {
            Ok(text) => {
                list.add(&text).map_err(|(line, reason)| ListError::Line(site, line, reason))?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(ListError::Read(site, error)),
        }
        Ok(list)
    }

    /// Adds the lines of a compilers file. An error has the line number and the reason.
    fn add(&mut self, text: &str) -> Result<(), (usize, String)> {
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => Ok(()),
                ["alias", name, compiler] => {
                    self.aliases.push((name.into(), compiler.into()));
                    Ok(())
                }
                ["alias", ..] => Err("alias takes two names".to_string()),
                [_] => Err("a script needs at least one compiler".to_string()),
                [script, ref compilers @ ..] => self.add_script(script, compilers),
            }
            .map_err(|reason| (index + 1, reason))?;
        }
        Ok(())
    }

    /// Adds the compilers of a line in its order, in front of the compilers of earlier lines.
    fn add_script(&mut self, script: &str, compilers: &[&str]) -> Result<(), String> {
        let position = self.scripts.iter().position(|(name, _)| name == script);
        let earlier = position.map(|index| self.scripts[index].1.clone()).unwrap_or_default();
        let mut merged = Vec::new();
        for word in compilers {
            let (name, path) = match word.split_once('=') {
                Some((name, path)) => (name, Some(path)),
                None => (*word, None),
            };
            let earlier_path =
                earlier.iter().find(|entry| entry.0 == name).map(|entry| entry.1.as_str());
            match path.or(earlier_path) {
                Some(path) if !name.is_empty() && !path.is_empty() => {
                    merged.push((name.to_string(), path.to_string()));
                }
                _ => return Err(format!("{word}: the path is missing")),
            }
        }
        merged.extend(
            earlier.into_iter().filter(|e| !merged.iter().any(|m| m.0 == e.0)).collect::<Vec<_>>(),
        );
        match position {
            Some(index) => self.scripts[index].1 = merged,
            None => self.scripts.push((script.to_string(), merged)),
        }
        Ok(())
    }

    /// The scripts. Built-in ones come first.
    pub fn scripts(&self) -> impl Iterator<Item = &str> {
        self.scripts.iter().map(|(name, _)| name.as_str())
    }

    /// The scripts of an environment: `score` for the wrappers of this package, `mpi` for the
    /// site's scripts whose names begin with `mpi`.
    pub fn environment(&self, name: &str) -> Result<Vec<&str>, ListError> {
        let is_member: fn(&str) -> bool = match name {
            "score" => |script| SCRIPTS.contains(&script),
            "mpi" => |script| script.starts_with("mpi"),
            _ => return Err(ListError::Environment(name.into())),
        };
        Ok(self.scripts().filter(|script| is_member(script)).collect())
    }

    /// A script's compilers as (name, path), with the default first. Includes the aliases if
    /// `aliases` is set.
    pub fn for_script(&self, script: &str, aliases: bool) -> Result<Vec<(&str, &str)>, ListError> {
        let found = self.scripts.iter().find(|(name, _)| name == script);
        let Some((_, compilers)) = found else {
            let names: Vec<&str> = self.scripts().collect();
            return Err(ListError::Script(script.into(), names.join(", ")));
        };
        let is_alias = |name: &str| self.aliases.iter().any(|(alias, _)| alias == name);
        let mut entries: Vec<(&str, &str)> = compilers
            .iter()
            .filter(|(name, _)| aliases || !is_alias(name))
            .map(|(name, path)| (name.as_str(), path.as_str()))
            .collect();
        if aliases {
            for (alias, compiler) in &self.aliases {
                let path = entries.iter().find(|entry| entry.0 == compiler).map(|entry| entry.1);
                if let Some(path) = path.filter(|_| !entries.iter().any(|e| e.0 == alias)) {
                    entries.push((alias, path));
                }
            }
        }
        Ok(entries)
    }

    /// The path of a script's compiler. `source` is the option or variable with its name.
    pub fn path(&self, script: &str, name: &str, source: &'static str) -> Result<&str, ListError> {
        let compilers = self.for_script(script, true)?;
        if let Some((_, path)) = compilers.iter().find(|entry| entry.0 == name) {
            return Ok(path);
        }
        let names: Vec<&str> = compilers.iter().map(|entry| entry.0).collect();
        Err(ListError::Compiler(source, script.into(), name.into(), names.join(", ")))
    }

    /// The path of a script's default compiler.
    pub fn default_path(&self, script: &str) -> Result<&str, ListError> {
        Ok(self.for_script(script, true)?[0].1)
    }
}

/// The value for a script in a list of `SCRIPT=VALUE` or `VALUE`, separated by spaces or commas. It
/// is the entry with the script's name or, if there is none, the first entry without a name
/// (manual, scorecc(1), ENVIRONMENT).
pub fn choose(value: &str, script: &str) -> Option<String> {
    let entries = || value.split([' ', ',', '\t']).filter(|entry| !entry.is_empty());
    let named = entries().find_map(|entry| entry.split_once('=').filter(|pair| pair.0 == script));
    let plain = || entries().find(|entry| !entry.contains('='));
    named.map(|pair| pair.1).or_else(plain).filter(|found| !found.is_empty()).map(String::from)
}

/// Whether a command is executable. The command is a path, or a name in PATH.
pub fn is_installed(command: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let is_executable = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if command.contains('/') {
        return is_executable(Path::new(command));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| is_executable(&folder.join(command)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Compilers {
        let mut list = Compilers::built_in(|_| false);
        list.add(text).unwrap();
        list
    }

    #[test]
    fn commercial_compilers_are_listed_only_if_they_are_installed() {
        let compiler_count = |list: Compilers| list.for_script("scorecc", true).unwrap().len();
        assert_eq!(compiler_count(Compilers::built_in(|_| false)), 2);
        assert_eq!(compiler_count(Compilers::built_in(|command| command == "pgcc")), 3);
    }

    #[test]
    fn a_site_file_reorders_adds_and_renames_compilers() {
        let list = list("scorecc clang tcc=/opt/tcc # ours\nalias gnu3 gnu\nmpicc gnu=gcc\n\n");
        assert_eq!(list.default_path("scorecc").unwrap(), "clang");
        assert_eq!(
            list.for_script("scorecc", true).unwrap(),
            [("clang", "clang"), ("tcc", "/opt/tcc"), ("gnu", "gcc"), ("gnu3", "gcc")]
        );
        assert_eq!(list.for_script("scorecc", false).unwrap().len(), 3);
        assert_eq!(list.environment("mpi").unwrap(), ["mpicc"]);
        assert_eq!(list.environment("score").unwrap(), SCRIPTS);
    }

    #[test]
    fn an_alias_with_its_own_path_keeps_the_path() {
        let list = list("alias gnu3 gnu\nscorecc gnu=gcc gnu3=gcc3\n");
        assert_eq!(list.path("scorecc", "gnu3", "-compiler").unwrap(), "gcc3");
        assert!(!list.for_script("scorecc", false).unwrap().iter().any(|entry| entry.0 == "gnu3"));
    }

    #[test]
    fn a_faulty_line_is_named_by_its_number() {
        for (text, line) in
            [("\nscorecc\n", 2), ("alias a\n", 1), ("scorecc x\n", 1), ("#\n\nscorecc =y", 3)]
        {
            let error = Compilers::built_in(|_| false).add(text).unwrap_err();
            assert_eq!(error.0, line, "{text:?}: {}", error.1);
        }
    }

    #[test]
    fn an_environment_entry_with_the_name_of_the_script_takes_precedence() {
        assert_eq!(choose("clang, scorecc=gnu", "scorecc").as_deref(), Some("gnu"));
        assert_eq!(choose("clang scorecc=gnu", "scorec++").as_deref(), Some("clang"));
        assert_eq!(choose("scorecc=gnu", "scorec++"), None);
        assert_eq!(choose(" ,", "scorecc"), None);
    }
}
