//! Parses lines into records: a name, then `ATTRIBUTE=VALUE[,VALUE]...`. Lines with the same name
//! form one record, and the values of equal attributes are joined. A `~` in front of the name marks
//! the host as out of order (score_doc 7).

use super::LOCAL_KEYWORD;
use crate::MAX_HOSTS;
use crate::error::ParseError;
use crate::hostlist;
use crate::preprocess::Word;
use std::collections::HashMap;

/// One record.
#[derive(Debug)]
pub struct Record {
    /// The name of the record.
    pub name: String,
    /// The word of the name's first occurrence.
    pub word: Word,
    /// Whether a line of the record marks the host as out of order.
    pub defect: bool,
    /// The attributes in order.
    pub attributes: Vec<Attribute>,
}

/// One attribute as written.
#[derive(Debug, Clone)]
pub struct Attribute {
    /// The name of the attribute.
    pub name: String,
    /// The values, at least one.
    pub values: Vec<String>,
    /// The word in the file.
    pub word: Word,
}

/// Reads records from lines of words.
///
/// # Errors
/// The first word that is wrong.
pub fn read(lines: &[Vec<Word>]) -> Result<Vec<Record>, ParseError> {
    let mut records: Vec<Record> = Vec::new();
    let mut index_by_name: HashMap<String, usize> = HashMap::new();
    for line in lines {
        let Some((first, rest)) = line.split_first() else { continue };
        let (name, defect) = match first.text.strip_prefix('~') {
            Some(name) => (name, true),
            None => (first.text.as_str(), false),
        };
        let names = names(name, first)?;
        let attributes = rest.iter().map(attribute).collect::<Result<Vec<_>, ParseError>>()?;
        for name in names {
            let index = *index_by_name.entry(name.clone()).or_insert_with(|| {
                let (word, attributes) = (first.clone(), Vec::new());
                records.push(Record { name, word, defect: false, attributes });
                records.len() - 1
            });
            records[index].defect |= defect;
            records[index].attributes.extend(attributes.iter().cloned());
            if records.len() > MAX_HOSTS {
                return Err(first.error(&first.text, format!("more than {MAX_HOSTS} records")));
            }
        }
    }
    Ok(records)
}

/// The names at the beginning of a line: one name, or a range.
fn names(name: &str, word: &Word) -> Result<Vec<String>, ParseError> {
    if name.contains('=') {
        let what = "a line begins with the name of its record, then ATTRIBUTE=VALUE";
        return Err(word.error(&word.text, what));
    }
    let names = hostlist::expand(name).map_err(|what| word.error(name, what))?;
    match names.iter().find_map(|name| Some((name, name_error(name, true)?))) {
        Some((name, what)) => {
            Err(word.error(if name.is_empty() { &word.text } else { name }, what))
        }
        None => Ok(names),
    }
}

/// Checks whether a word can be the name of a host, a group or, with `/`, a host's interface to a
/// network. Returns the reason if it cannot.
pub fn name_error(name: &str, allows_slash: bool) -> Option<String> {
    let number = name.strip_prefix(LOCAL_KEYWORD);
    if number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
        return Some(format!("'{name}' is reserved ({LOCAL_KEYWORD}:N are virtual hosts)"));
    }
    if name.is_empty() || name.starts_with('/') || name.ends_with('/') {
        return Some("a name is expected".into());
    }
    let operator =
        |letter: char| "+~:@^,=[]\"'\\".contains(letter) || letter == '/' && !allows_slash;
    let bad_char = name.chars().find(|letter| operator(*letter))?;
    Some(format!("'{bad_char}' is not allowed in a name"))
}

fn attribute(word: &Word) -> Result<Attribute, ParseError> {
    let Some((name, list)) = word.text.split_once('=') else {
        let what = "neither an attribute (NAME=VALUE[,VALUE]...) nor a macro that is defined";
        return Err(word.error(&word.text, what));
    };
    if name.is_empty() {
        let what = "ATTRIBUTE=VALUE is expected, without blanks around the =";
        return Err(word.error(&word.text, what));
    }
    let values: Vec<String> = list.split(',').map(str::to_owned).collect();
    if values.iter().any(String::is_empty) {
        return Err(word.error(&word.text, "a value is empty (NAME=VALUE[,VALUE]... is expected)"));
    }
    Ok(Attribute { name: name.to_owned(), values, word: word.clone() })
}
