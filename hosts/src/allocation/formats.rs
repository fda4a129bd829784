//! The formats in which batch systems list hosts and slots.

use crate::database::host_name_error;
use crate::error::printable;
use crate::{MAX_HOSTS, MAX_NODES, hostlist};
use std::collections::HashMap;

/// The name and the slots of each host. No host appears twice.
pub(super) type Slots = Vec<(String, u32)>;

#[derive(Default)]
struct SlotListBuilder {
    slots: Slots,
    index_by_name: HashMap<String, usize>,
}

impl SlotListBuilder {
    fn add(&mut self, name: &str, slots: u32) -> Result<(), String> {
        if host_name_error(name).is_some() || name.starts_with('(') {
            return Err(format!("'{}' is not a valid name of a host", printable(name)));
        }
        let index = *self.index_by_name.entry(name.to_owned()).or_insert_with(|| {
            self.slots.push((name.to_owned(), 0));
            self.slots.len() - 1
        });
        if self.slots.len() > MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} hosts"));
        }
        let sum = &mut self.slots[index].1;
        *sum = sum.saturating_add(slots).min(MAX_NODES);
        Ok(())
    }

    fn finish(self) -> Result<Slots, String> {
        if self.slots.is_empty() { Err("it contains no host".into()) } else { Ok(self.slots) }
    }
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && (1..=MAX_NODES).contains(number))
}

/// Parses `n[1-2,07],x` and, with the name of its variable, `8(x3),2`.
pub(super) fn slurm(nodes: &str, slots: Option<(&str, &str)>) -> Result<Slots, String> {
    let mut names = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (index, letter) in nodes.char_indices().chain([(nodes.len(), ',')]) {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside || index == nodes.len() => {
                let part = nodes[start..index].trim();
                let named = |what: String| format!("{}: {what}", printable(part));
                names.extend(hostlist::expand(part).map_err(named)?);
                start = index + 1;
            }
            _ => {}
        }
        if names.len() > MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} hosts"));
        }
    }
    let mut counts = Vec::new();
    for part in slots.map_or("", |(_, value)| value).split(',').filter(|part| !part.is_empty()) {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (number(count), times.strip_suffix(')').and_then(number)),
            None => (number(part), Some(1)),
        };
        let (Some(count), Some(times)) = (count, times) else {
            return Err(format!(
                "'{}' is not a number of slots (8(x3) is expected)",
                printable(part)
            ));
        };
        counts.extend(std::iter::repeat_n(count, (times as usize).min(MAX_HOSTS)));
        if counts.len() > MAX_HOSTS {
            return Err(format!("more than {MAX_HOSTS} hosts"));
        }
    }
    if let Some((name, value)) = slots
        && counts.len() != names.len()
    {
        let (hosts, entry_count, value) = (names.len(), counts.len(), printable(value));
        return Err(format!("{hosts} hosts, but {name}={value} is for {entry_count}"));
    }
    let mut builder = SlotListBuilder::default();
    for (index, name) in names.iter().enumerate() {
        builder.add(name, counts.get(index).copied().unwrap_or(1))?;
    }
    builder.finish()
}

/// Parses names that are repeated once per slot.
pub(super) fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> Result<Slots, String> {
    let mut builder = SlotListBuilder::default();
    for name in names.map(str::trim).filter(|name| !name.is_empty()) {
        builder.add(name, 1)?;
    }
    builder.finish()
}

/// Parses `host slots host slots ...`.
pub(super) fn pairs(text: &str) -> Result<Slots, String> {
    let mut builder = SlotListBuilder::default();
    let mut words = text.split_whitespace();
    while let Some(name) = words.next() {
        let slots = words.next().and_then(number);
        let missing = || format!("the number of slots after {} is missing", printable(name));
        builder.add(name, slots.ok_or_else(missing)?)?;
    }
    builder.finish()
}

/// Parses lines of host, slots and further fields, which are ignored.
pub(super) fn host_file(text: &str) -> Result<Slots, String> {
    let mut builder = SlotListBuilder::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let slots = words.next().and_then(number);
        let missing = || format!("the number of slots after {} is missing", printable(name));
        builder.add(name, slots.ok_or_else(missing)?)?;
    }
    builder.finish()
}
