//! Expressions over hosts (score_doc 7, scorehosts): names of hosts, groups and files of hosts,
//! joined by five operators that are evaluated from left to right. The answer is an ordered set.
//!
//! | | |
//! |---|---|
//! | `a+b` | the hosts of `a`, then those of `b` that are not among them |
//! | `a~b` | the hosts of `a` that are not of `b` |
//! | `a:N`, `a:host` | the first N hosts; those before `host` |
//! | `a@N`, `a@host` | those behind the first N; those from `host` on |
//! | `a^b` | the hosts of `b`, then those of `a` that are not among them |
//!
//! Ours: `comp[0-15]`, and `local:N`, which are N virtual hosts on this machine.

use crate::MAX_HOSTS;
use crate::database::{Database, Host, LOCAL};
use crate::fault::{ExpressionFault, shown};
use crate::preprocess;
use crate::range;
use crate::source::Read;
use std::collections::HashSet;
use std::path::Path;

/// More virtual hosts than this are refused.
pub const MAX_VIRTUAL: usize = 4096;

/// What virtual hosts get of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Virtual {
    /// Processors of the machine, shared by all; never fewer than one each.
    pub processors: u32,
    /// Its kind of programs.
    pub bintype: Option<String>,
}

/// What names in an expression can mean.
#[derive(Clone)]
pub struct Context<'a> {
    /// The database, if there is one.
    pub database: Option<&'a Database>,
    /// How files of hosts are read.
    pub read: Read<'a>,
    /// What `local:N` gives.
    pub machine: Virtual,
}

impl<'a> Context<'a> {
    /// Without a database, on a machine of one processor.
    pub fn new(read: Read<'a>) -> Self {
        Self { database: None, read, machine: Virtual { processors: 1, bintype: None } }
    }
}

/// The hosts that an expression means, those out of order included: at least one, none twice.
///
/// # Errors
/// The first name or operator that is wrong.
pub fn evaluate(expression: &str, context: &Context<'_>) -> Result<Vec<Host>, ExpressionFault> {
    let mut terms = split(expression)?.into_iter();
    let Some((_, at, first)) = terms.next() else { return Ok(Vec::new()) };
    let mut set = if first == LOCAL {
        let count = terms.next().filter(|(operator, _, _)| *operator == ':');
        local(at, count, &context.machine)?
    } else {
        operand(at, first, context)?
    };
    for (operator, at, word) in terms {
        let fault = |what: String| ExpressionFault { at, what };
        match operator {
            ':' | '@' => {
                let cut = cut(operator, word, &set).map_err(fault)?;
                if operator == ':' {
                    set.truncate(cut);
                } else {
                    set.drain(..cut);
                }
            }
            _ if word == LOCAL || set[0].is_virtual => {
                let what = format!("virtual hosts stand alone ({LOCAL}:N, then : or @ at most)");
                return Err(fault(what));
            }
            '~' => {
                let gone = names(&operand(at, word, context)?);
                set.retain(|host| !gone.contains(&host.name));
            }
            '^' => {
                let behind = std::mem::replace(&mut set, operand(at, word, context)?);
                join(&mut set, behind);
            }
            _ => join(&mut set, operand(at, word, context)?),
        }
        if set.is_empty() {
            return Err(fault(format!("'{operator}{}' leaves no host", shown(word))));
        }
        if set.len() > MAX_HOSTS {
            return Err(fault(format!("more than {MAX_HOSTS} hosts")));
        }
    }
    Ok(set)
}

/// Operator (`+` for the first), place and text of each operand.
fn split(expression: &str) -> Result<Vec<(char, usize, &str)>, ExpressionFault> {
    let mut terms = Vec::new();
    let (mut operator, mut start, mut inside) = ('+', 0, false);
    let end = std::iter::once((expression.len(), '+'));
    for (index, letter) in expression.char_indices().chain(end) {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            '+' | '~' | ':' | '@' | '^' if !inside || index == expression.len() => {
                let word = &expression[start..index];
                if word.is_empty() {
                    let before = if start == 0 { String::new() } else { format!(" '{operator}'") };
                    let place = if before.is_empty() { "first" } else { "behind" };
                    let what = format!("a host, a group or a file is expected {place}{before}");
                    return Err(ExpressionFault { at: start, what });
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

fn join(set: &mut Vec<Host>, more: Vec<Host>) {
    let known = names(set);
    set.extend(more.into_iter().filter(|host| !known.contains(&host.name)));
}

/// How many hosts stand before the cut that `:` or `@` makes.
fn cut(operator: char, word: &str, set: &[Host]) -> Result<usize, String> {
    let has = set.len();
    let plural = if has == 1 { "" } else { "s" };
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        let count = word.trim_start_matches('0');
        let number = if count.is_empty() { Ok(0) } else { count.parse::<usize>() };
        return match (number, operator) {
            (Ok(0), ':') => Err(format!("'{operator}{}' leaves no host", shown(word))),
            (Ok(number), _) if number <= has => Ok(number),
            _ => Err(format!("{} hosts are wanted, {has} host{plural} are there", shown(word))),
        };
    }
    let label = |host: &&Host| host.name.split('.').next() == Some(word);
    let exact = set.iter().position(|host| host.name == word);
    let short = || match set.iter().filter(label).count() {
        1 => set.iter().position(|host| label(&host)),
        _ => None,
    };
    exact.or_else(short).ok_or_else(|| {
        let near = crate::near::nearest(word, set.iter().map(|host| host.name.as_str()));
        let hint = match near {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("a number up to {has} or a host of the set is expected"),
        };
        format!("'{}' is not among the {has} host{plural}; {hint}", shown(word))
    })
}

/// `local:N`.
fn local(
    at: usize,
    count: Option<(char, usize, &str)>,
    machine: &Virtual,
) -> Result<Vec<Host>, ExpressionFault> {
    let Some((_, at, count)) = count else {
        let what = format!("how many virtual hosts? {LOCAL}:4 is expected");
        return Err(ExpressionFault { at, what });
    };
    let fault = |what: String| ExpressionFault { at, what };
    let digits = count.bytes().all(|byte| byte.is_ascii_digit());
    let number = count.parse::<usize>().ok().filter(|number| digits && *number > 0);
    let number = match number {
        Some(number) if number <= MAX_VIRTUAL => number,
        _ => {
            let (word, most) = (shown(count), MAX_VIRTUAL);
            return Err(fault(format!("'{word}' is no number of virtual hosts from 1 to {most}")));
        }
    };
    let each = (machine.processors / number as u32).max(1);
    let host = |index| Host {
        name: format!("{LOCAL}{index}"),
        processors: Some(each),
        bintype: machine.bintype.clone(),
        is_virtual: true,
        ..Host::default()
    };
    Ok((0..number).map(host).collect())
}

/// A group, a host, a range of hosts or a file of hosts.
fn operand(at: usize, word: &str, context: &Context<'_>) -> Result<Vec<Host>, ExpressionFault> {
    let fault = |what: String| ExpressionFault { at, what };
    if word.contains('/') {
        return of_file(word, context).map_err(fault);
    }
    if let Some(database) = context.database {
        if let Some(members) = database.group(word) {
            return Ok(members.cloned().collect());
        }
        if let Some(host) = database.host(word) {
            return Ok(vec![host.clone()]);
        }
        if range::is_range(word) {
            let named = |what: String| fault(format!("{}: {what}", shown(word)));
            let names = range::expand(word).map_err(named)?;
            let mut set = Vec::new();
            let mut seen = HashSet::new();
            for name in names {
                let unknown = || fault(format!("'{}': {}", shown(&name), database.unknown(&name)));
                let host = database.host(&name).ok_or_else(unknown)?;
                if seen.insert(host.name.clone()) {
                    set.push(host.clone());
                }
            }
            return Ok(set);
        }
    }
    if (context.read)(Path::new(word)).is_ok() {
        return of_file(word, context).map_err(fault);
    }
    let what = match context.database {
        Some(database) => database.unknown(word),
        None => format!(
            "no scorehosts.db says what that is ({} or {} names one; {LOCAL}:N are virtual hosts)",
            crate::source::VARIABLE,
            crate::source::DEFAULT
        ),
    };
    Err(fault(format!("'{}': {what}", shown(word))))
}

/// The hosts of a file, one a line; known to the database if there is one.
///
/// # Errors
/// What is wrong in the file.
pub fn of_file(path: &str, context: &Context<'_>) -> Result<Vec<Host>, String> {
    let bytes = (context.read)(Path::new(path));
    let bytes = bytes.map_err(|error| format!("{}: {error}", shown(path)))?;
    let lines = preprocess::lines(path, &bytes, context.read).map_err(|fault| fault.to_string())?;
    let mut set = Vec::new();
    let mut seen = HashSet::new();
    for line in lines {
        let wrong = |part: &str, what: String| line[0].fault(part, what).to_string();
        if let Some(more) = line.get(1) {
            return Err(more.fault(&more.text, "one host a line is expected").to_string());
        }
        let word = &line[0].text;
        for name in range::expand(word).map_err(|what| wrong(word, what))? {
            if let Some(what) = crate::database::wrong_name(&name) {
                return Err(wrong(&name, what));
            }
            let host = match context.database {
                Some(database) => match database.host(&name) {
                    Some(host) => host.clone(),
                    None => return Err(wrong(&name, database.unknown(&name))),
                },
                None => Host { name, ..Host::default() },
            };
            if seen.insert(host.name.clone()) {
                set.push(host);
            }
            if set.len() > MAX_HOSTS {
                return Err(wrong(word, format!("more than {MAX_HOSTS} hosts")));
            }
        }
    }
    if set.is_empty() {
        return Err(format!("{}: no host is in it", shown(path)));
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
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }
    }

    fn hosts(expression: &str) -> Result<String, String> {
        let database = Database::parse("db", DB, &files).unwrap();
        let machine = Virtual { processors: 6, bintype: Some("x86".into()) };
        let context = Context { database: Some(&database), read: &files, machine };
        let set = evaluate(expression, &context);
        let set = set.map_err(|fault| format!("{}: {fault}", fault.at))?;
        Ok(set.into_iter().map(|host| host.name).collect::<Vec<_>>().join(" "))
    }

    /// The examples of the page, and what its words say of the operators.
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
    fn local_is_virtual_hosts_and_stands_alone() {
        assert_eq!(hosts("local:3").unwrap(), "local0 local1 local2");
        assert_eq!(hosts("local:3@1:1").unwrap(), "local1");
        let context = Context {
            machine: Virtual { processors: 6, bintype: Some("x86".into()) },
            ..Context::new(&files)
        };
        let set = evaluate("local:4", &context).unwrap();
        let host = set.last().unwrap();
        assert!(host.is_virtual && host.processors == Some(1));
        assert_eq!(host.bintype.as_deref(), Some("x86"));
        for expression in ["local:2+comp0", "local:2~local", "all+local:2", "local:2^comp0"] {
            let error = hosts(expression).unwrap_err();
            assert!(error.contains("virtual hosts stand alone"), "{expression}: {error}");
        }
    }

    #[test]
    fn every_fault_names_its_word_and_what_would_be_right() {
        for (expression, expected) in [
            ("", "0: a host, a group or a file is expected first"),
            ("+a", "0: a host, a group or a file is expected first"),
            ("all+", "4: a host, a group or a file is expected behind '+'"),
            ("all~+comp0", "4: a host, a group or a file is expected behind '~'"),
            ("al", "0: 'al': no host or group of db; did you mean 'all'?"),
            ("all+comp8", "4: 'comp8': no host or group of db; did you mean 'comp0'?"),
            ("nobody", "0: 'nobody': no host or group of db; there are the groups all, large"),
            ("big", "0: 'big': several hosts are called so: big.one.org, big.two.org"),
            ("comp[0-8]", "0: 'comp8': no host or group"),
            ("comp[0-", "0: comp[0-: '[' is not closed"),
            ("all:9", "4: 9 hosts are wanted, 8 hosts are there"),
            ("all:0", "4: ':0' leaves no host"),
            ("all@8", "4: '@8' leaves no host"),
            ("all@99999999999999999999", "4: 99999999999999999999 hosts are wanted, 8"),
            ("all:x", "4: 'x' is not among the 8 hosts; a number up to 8 or a host"),
            ("all:2@comp3", "6: 'comp3' is not among the 2 hosts; did you mean 'comp0'?"),
            ("all~all", "4: '~all' leaves no host"),
            ("local", "0: how many virtual hosts? local:4"),
            ("local@2", "0: how many virtual hosts? local:4"),
            ("local:0", "6: '0' is no number of virtual hosts from 1 to 4096"),
            ("local:5000", "6: '5000' is no number"),
            ("local:comp1", "6: 'comp1' is no number"),
            ("./gone", "0: ./gone: "),
            ("./odd", "0: ./odd:2: comp9: no host or group of db; did you mean 'comp0'?"),
            ("./words", "0: ./words:1: comp2: one host a line"),
            ("./none", "0: ./none: no host is in it"),
        ] {
            let error = hosts(expression).unwrap_err();
            assert!(error.starts_with(expected), "{expression}: {error}");
        }
    }

    #[test]
    fn without_a_database_there_are_files_and_virtual_hosts() {
        let context = Context::new(&files);
        let set = evaluate("./words", &context).unwrap_err();
        assert!(set.what.contains("one host a line"), "{set}");
        let set = evaluate("./odd", &context).unwrap();
        assert_eq!((set[1].name.as_str(), set[1].processors), ("comp9", None));
        let unknown = evaluate("pcc", &context).unwrap_err();
        assert!(unknown.what.contains("no scorehosts.db says what that is"), "{unknown}");
    }
}
