//! Expressions over hosts (score_doc 7, scorehosts): names of hosts, groups and files of hosts,
//! joined by five operators. Operators are evaluated from left to right. The result is an ordered
//! set.
//!
//! | | |
//! |---|---|
//! | `a+b` | the hosts of `a`, then the hosts of `b` that are not in `a` |
//! | `a~b` | the hosts of `a` that are not in `b` |
//! | `a:N`, `a:host` | the first N hosts; the hosts in front of `host` |
//! | `a@N`, `a@host` | the hosts after the first N; the hosts from `host` on |
//! | `a^b` | the hosts of `b`, then the hosts of `a` that are not in `b` |
//!
//! Extensions: `comp[0-15]`, and `local:N` for N virtual hosts on this machine.

use crate::MAX_HOSTS;
use crate::database::{Database, Host, LOCAL_KEYWORD};
use crate::database_file::ReadFile;
use crate::error::{ExpressionError, printable};
use crate::hostlist;
use crate::preprocess;
use std::collections::HashSet;
use std::path::Path;

/// The largest number of virtual hosts.
pub const MAX_VIRTUAL: usize = 1024;

/// The properties that virtual hosts inherit from this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualHostSpec {
    /// The processors of the machine, which all virtual hosts share. Each virtual host has at least
    /// one.
    pub processors: u32,
    /// The machine's kind of programs.
    pub bintype: Option<String>,
}

/// The definitions that give names in an expression their meaning.
#[derive(Clone)]
pub struct Context<'a> {
    /// The database, if there is one.
    pub database: Option<&'a Database>,
    /// The function that reads files of hosts.
    pub read: ReadFile<'a>,
    /// The properties of the hosts of `local:N`.
    pub machine: VirtualHostSpec,
}

impl<'a> Context<'a> {
    /// A context without a database, on a machine with one processor.
    pub fn new(read: ReadFile<'a>) -> Self {
        Self { database: None, read, machine: VirtualHostSpec { processors: 1, bintype: None } }
    }
}

/// The hosts of an expression, including hosts that are out of order. There is at least one host,
/// and none appears twice.
///
/// # Errors
/// The first name or operator that is wrong.
pub fn evaluate(expression: &str, context: &Context<'_>) -> Result<Vec<Host>, ExpressionError> {
    let mut terms = split(expression)?.into_iter();
    let Some((_, offset, first)) = terms.next() else { return Ok(Vec::new()) };
    let mut set = if first == LOCAL_KEYWORD {
        let count = terms.next().filter(|(operator, _, _)| *operator == ':');
        virtual_hosts(offset, count, &context.machine)?
    } else {
        operand(offset, first, context)?
    };
    for (operator, offset, word) in terms {
        let error = |what: String| ExpressionError { offset, message: what };
        match operator {
            ':' | '@' => {
                let index = cut_index(word, &set).map_err(error)?;
                if operator == ':' {
                    set.truncate(index);
                } else {
                    set.drain(..index);
                }
            }
            _ if word == LOCAL_KEYWORD || set[0].is_virtual => {
                let what = format!(
                    "virtual hosts cannot be combined ({LOCAL_KEYWORD}:N, then : or @ at most)"
                );
                return Err(error(what));
            }
            '~' => {
                let removed_names = names(&operand(offset, word, context)?);
                set.retain(|host| !removed_names.contains(&host.name));
            }
            '^' => {
                let previous_set = std::mem::replace(&mut set, operand(offset, word, context)?);
                append_missing(&mut set, previous_set);
            }
            _ => append_missing(&mut set, operand(offset, word, context)?),
        }
        if set.is_empty() {
            return Err(error(format!("'{operator}{}' leaves no host", printable(word))));
        }
        if set.len() > MAX_HOSTS {
            return Err(error(format!("more than {MAX_HOSTS} hosts")));
        }
    }
    Ok(set)
}

/// Splits an expression. Returns operator (`+` for the first), offset and text of each operand.
fn split(expression: &str) -> Result<Vec<(char, usize, &str)>, ExpressionError> {
    let mut terms = Vec::new();
    let (mut operator, mut start, mut in_brackets) = ('+', 0, false);
    let end = std::iter::once((expression.len(), '+'));
    for (index, letter) in expression.char_indices().chain(end) {
        match letter {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            '+' | '~' | ':' | '@' | '^' if !in_brackets || index == expression.len() => {
                let word = &expression[start..index];
                if word.is_empty() {
                    let previous_operator =
                        if start == 0 { String::new() } else { format!(" '{operator}'") };
                    let position = if previous_operator.is_empty() { "first" } else { "after" };
                    let what = format!(
                        "a host, a group or a file is expected {position}{previous_operator}"
                    );
                    return Err(ExpressionError { offset: start, message: what });
                }
                terms.push((operator, start, word));
                (operator, start) = (letter, index + letter.len_utf8());
            }
            _ => {}
        }
    }
    Ok(terms)
}

fn names(hosts: &[Host]) -> HashSet<String> {
    hosts.iter().map(|host| host.name.clone()).collect()
}

fn append_missing(set: &mut Vec<Host>, more: Vec<Host>) {
    let present = names(set);
    set.extend(more.into_iter().filter(|host| !present.contains(&host.name)));
}

/// The number of hosts in front of the position at which `:` or `@` splits the set.
fn cut_index(word: &str, set: &[Host]) -> Result<usize, String> {
    let host_count = set.len();
    let plural = if host_count == 1 { "" } else { "s" };
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        let count = word.trim_start_matches('0');
        let number = if count.is_empty() { Ok(0) } else { count.parse::<usize>() };
        return match number {
            Ok(number) if number <= host_count => Ok(number),
            _ => Err(format!(
                "{} hosts are requested, but the set has {host_count} host{plural}",
                printable(word)
            )),
        };
    }
    let has_label = |host: &&Host| host.name.split('.').next() == Some(word);
    let exact = set.iter().position(|host| host.name == word);
    let by_label = || match set.iter().filter(has_label).count() {
        1 => set.iter().position(|host| has_label(&host)),
        _ => None,
    };
    exact.or_else(by_label).ok_or_else(|| {
        let suggestion =
            crate::name_suggestion::nearest(word, set.iter().map(|host| host.name.as_str()));
        let hint = match suggestion {
            Some(name) => format!("did you mean '{name}'?"),
            None => format!("a number up to {host_count} or a host of the set is expected"),
        };
        format!("'{}' is not among the {host_count} host{plural}; {hint}", printable(word))
    })
}

/// The hosts of `local:N`.
fn virtual_hosts(
    offset: usize,
    count: Option<(char, usize, &str)>,
    machine: &VirtualHostSpec,
) -> Result<Vec<Host>, ExpressionError> {
    let Some((_, offset, count)) = count else {
        let what =
            format!("the number of virtual hosts is missing ({LOCAL_KEYWORD}:4 is expected)");
        return Err(ExpressionError { offset, message: what });
    };
    let error = |what: String| ExpressionError { offset, message: what };
    let digits = count.bytes().all(|byte| byte.is_ascii_digit());
    let number = count.parse::<usize>().ok().filter(|number| digits && *number > 0);
    let number = match number {
        Some(number) if number <= MAX_VIRTUAL => number,
        _ => {
            let (word, max_hosts) = (printable(count), MAX_VIRTUAL);
            return Err(error(format!(
                "'{word}' is not a number of virtual hosts from 1 to {max_hosts}"
            )));
        }
    };
    let processors_each = (machine.processors / number as u32).max(1);
    let host = |index| Host {
        name: format!("{LOCAL_KEYWORD}{index}"),
        processors: Some(processors_each),
        bintype: machine.bintype.clone(),
        is_virtual: true,
        ..Host::default()
    };
    Ok((0..number).map(host).collect())
}

/// A group, a host, a range of hosts or a file of hosts.
fn operand(offset: usize, word: &str, context: &Context<'_>) -> Result<Vec<Host>, ExpressionError> {
    let error = |what: String| ExpressionError { offset, message: what };
    if word.contains('/') {
        return hosts_of_file(word, context).map_err(error);
    }
    if let Some(database) = context.database {
        if let Some(members) = database.group(word) {
            return Ok(members.cloned().collect());
        }
        if let Some(host) = database.host(word) {
            return Ok(vec![host.clone()]);
        }
        if hostlist::is_range(word) {
            let named = |what: String| error(format!("{}: {what}", printable(word)));
            let names = hostlist::expand(word).map_err(named)?;
            let mut set = Vec::new();
            let mut seen = HashSet::new();
            for name in names {
                let unknown = || {
                    error(format!("'{}': {}", printable(&name), database.unknown_name_error(&name)))
                };
                let host = database.host(&name).ok_or_else(unknown)?;
                if seen.insert(host.name.clone()) {
                    set.push(host.clone());
                }
            }
            return Ok(set);
        }
    }
    if (context.read)(Path::new(word)).is_ok() {
        return hosts_of_file(word, context).map_err(error);
    }
    let what = match context.database {
        Some(database) => database.unknown_name_error(word),
        None => format!(
            "no scorehosts.db defines it (set {} or create {}; {LOCAL_KEYWORD}:N are \
             virtual hosts)",
            crate::database_file::DATABASE_ENV,
            crate::database_file::DEFAULT_DATABASE_PATH
        ),
    };
    Err(error(format!("'{}': {what}", printable(word))))
}

/// The hosts of a file, one per line. If there is a database, they are looked up in it.
///
/// # Errors
/// The error in the file.
pub fn hosts_of_file(path: &str, context: &Context<'_>) -> Result<Vec<Host>, String> {
    let bytes = (context.read)(Path::new(path));
    let bytes = bytes.map_err(|error| format!("{}: {error}", printable(path)))?;
    let lines = preprocess::lines(path, &bytes, context.read).map_err(|error| error.to_string())?;
    let mut set = Vec::new();
    let mut seen = HashSet::new();
    for line in lines {
        let error_at = |part: &str, what: String| line[0].error(part, what).to_string();
        if let Some(extra) = line.get(1) {
            return Err(extra.error(&extra.text, "one host per line is expected").to_string());
        }
        let word = &line[0].text;
        for name in hostlist::expand(word).map_err(|what| error_at(word, what))? {
            if let Some(what) = crate::database::host_name_error(&name) {
                return Err(error_at(&name, what));
            }
            let host = match context.database {
                Some(database) => match database.host(&name) {
                    Some(host) => host.clone(),
                    None => return Err(error_at(&name, database.unknown_name_error(&name))),
                },
                None => Host { name, ..Host::default() },
            };
            if seen.insert(host.name.clone()) {
                set.push(host);
            }
            if set.len() > MAX_HOSTS {
                return Err(error_at(word, format!("more than {MAX_HOSTS} hosts")));
            }
        }
    }
    if set.is_empty() {
        return Err(format!("{}: it contains no host", printable(path)));
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DB: &[u8] = b"comp[0-7] group=all cores=2\nbig.one.org group=large\nbig.two.org\nx.org\n";

    fn files(path: &Path) -> std::io::Result<Vec<u8>> {
        match path.to_str() {
            Some("./two" | "two") => Ok(b"comp1 // a comment\ncomp2\ncomp1\n".to_vec()),
            Some("./odd") => Ok(b"comp1\ncomp9\n".to_vec()),
            Some("./words") => Ok(b"comp1 comp2\n".to_vec()),
            Some("./none") => Ok(b"/* nothing */\n".to_vec()),
            Some("./most") => Ok(b"n[0-65535]\n".to_vec()),
            Some("./more") => Ok(b"n[0-65535]\nm\n".to_vec()),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    fn hosts(expression: &str) -> Result<String, String> {
        let database = Database::parse("db", DB, &files).unwrap();
        let machine = VirtualHostSpec { processors: 6, bintype: Some("x86".into()) };
        let context = Context { database: Some(&database), read: &files, machine };
        let set = evaluate(expression, &context);
        let set = set.map_err(|error| format!("{}: {error}", error.offset))?;
        Ok(set.into_iter().map(|host| host.name).collect::<Vec<_>>().join(" "))
    }

    /// The examples of the manual page, and its statements about the operators.
    // Promise of `expressions_yield_the_hosts_of_the_score_7_manual`.
    #[test]
    fn operators_act_from_left_to_right_on_ordered_sets() {
        for (expression, expected) in [
            ("all:4", "comp0 comp1 comp2 comp3"),
            ("all@comp6", "comp6 comp7"),
            ("all~comp1~comp3~comp5~comp7", "comp0 comp2 comp4 comp6"),
            ("all+./two", "comp0 comp1 comp2 comp3 comp4 comp5 comp6 comp7"),
            ("all:comp2", "comp0 comp1"),
            ("all@5", "comp5 comp6 comp7"),
            ("all@2:3", "comp2 comp3 comp4"),
            ("comp3+comp1+comp3", "comp3 comp1"),
            ("comp3^comp1", "comp1 comp3"),
            ("all:3^comp2", "comp2 comp0 comp1"),
            ("two", "comp1 comp2"),
            ("comp[5-6,0]+x", "comp5 comp6 comp0 x.org"),
            ("all~comp[0-6]", "comp7"),
            ("large@big", "big.one.org"),
            ("all:008@7", "comp7"),
        ] {
            assert_eq!(hosts(expression).as_deref(), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn local_means_virtual_hosts_and_cannot_be_combined() {
        assert_eq!(hosts("local:3").unwrap(), "local0 local1 local2");
        assert_eq!(hosts("local:3@1:1").unwrap(), "local1");
        let context = Context {
            machine: VirtualHostSpec { processors: 6, bintype: Some("x86".into()) },
            ..Context::new(&files)
        };
        let set = evaluate("local:4", &context).unwrap();
        let host = set.last().unwrap();
        assert!(host.is_virtual && host.processors == Some(1));
        assert_eq!(host.bintype.as_deref(), Some("x86"));
        for expression in ["local:2+comp0", "local:2~local", "all+local:2", "local:2^comp0"] {
            let error = hosts(expression).unwrap_err();
            assert!(error.contains("virtual hosts cannot be combined"), "{expression}: {error}");
        }
    }

    #[test]
    fn every_error_names_its_word_and_the_remedy() {
        for (expression, expected) in [
            ("", "0: a host, a group or a file is expected first"),
            ("+a", "0: a host, a group or a file is expected first"),
            ("all+", "4: a host, a group or a file is expected after '+'"),
            ("all~+comp0", "4: a host, a group or a file is expected after '~'"),
            ("al", "0: 'al': no host or group of db; did you mean 'all'?"),
            ("all+comp8", "4: 'comp8': no host or group of db; did you mean 'comp0'?"),
            ("nobody", "0: 'nobody': no host or group of db; there are the groups all, large"),
            ("big", "0: 'big': several hosts have this name: big.one.org, big.two.org"),
            ("comp[0-8]", "0: 'comp8': no host or group"),
            ("comp[0-", "0: comp[0-: '[' is not closed"),
            ("comp[0+1]", "0: comp[0+1]: '0+1' is neither a number"),
            ("all:9", "4: 9 hosts are requested, but the set has 8 hosts"),
            ("all:0", "4: ':0' leaves no host"),
            ("all@8", "4: '@8' leaves no host"),
            ("all@99999999999999999999", "4: 99999999999999999999 hosts are requested, but"),
            ("all:x", "4: 'x' is not among the 8 hosts; a number up to 8 or a host"),
            ("all:2@comp3", "6: 'comp3' is not among the 2 hosts; did you mean 'comp0'?"),
            ("all~all", "4: '~all' leaves no host"),
            ("local", "0: the number of virtual hosts is missing (local:4"),
            ("local@2", "0: the number of virtual hosts is missing (local:4"),
            ("local:0", "6: '0' is not a number of virtual hosts from 1 to 1024"),
            ("local:5000", "6: '5000' is not a number"),
            ("local:comp1", "6: 'comp1' is not a number"),
            ("./gone", "0: ./gone: "),
            ("./odd", "0: ./odd:2: comp9: no host or group of db; did you mean 'comp0'?"),
            ("./words", "0: ./words:1: comp2: one host per line"),
            ("./none", "0: ./none: it contains no host"),
        ] {
            let error = hosts(expression).unwrap_err();
            assert!(error.starts_with(expected), "{expression}: {error}");
        }
    }

    #[test]
    fn without_a_database_only_files_and_virtual_hosts_are_available() {
        let context = Context::new(&files);
        let set = evaluate("./words", &context).unwrap_err();
        assert!(set.message.contains("one host per line"), "{set}");
        let set = evaluate("./odd", &context).unwrap();
        assert_eq!((set[1].name.as_str(), set[1].processors), ("comp9", None));
        assert_eq!(evaluate("./most", &context).map(|set| set.len()), Ok(MAX_HOSTS));
        let too_many = evaluate("./more", &context).unwrap_err();
        assert!(too_many.message.contains("./more:2: m: more than 65536 hosts"), "{too_many}");
        assert_eq!(evaluate("./most:65536", &context).map(|set| set.len()), Ok(MAX_HOSTS));
        let too_many = evaluate("./most+./two", &context).unwrap_err();
        assert_eq!(too_many.to_string(), "more than 65536 hosts");
        let unknown = evaluate("pcc", &context).unwrap_err();
        assert!(unknown.message.contains("no scorehosts.db defines it"), "{unknown}");
    }
}
