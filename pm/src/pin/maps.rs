//! The mappings of this process, as the kernel reports them. This module makes one query for each
//! mapping, or reads `/proc/self/maps` if the kernel has no such query (before Linux 6.11).

#![forbid(unsafe_code)]

use super::mapping::Mapping;
use super::page_range::PageRange;
use super::procmap_query::mapping_at;
use std::fs::File;
use std::io::{BufRead, BufReader};

const UNREADABLE: &str = "/proc/self/maps cannot be read";

/// The mappings that contain `span`, from the start of the first to the end of the last. All of
/// them must be private and anonymous, and leave no gap.
///
/// The result has whole mappings, because monitoring a part would split a mapping in two. The
/// kernel would then refuse to move both parts in one call (mremap(2), EFAULT).
///
/// # Errors
/// The reason: the memory is of another kind, or not mapped.
pub(super) fn anonymous_around(span: PageRange) -> Result<PageRange, &'static str> {
    let maps = File::open("/proc/self/maps").map_err(|_| UNREADABLE)?;
    match via_procmap_query(&maps, span) {
        Some(answer) => answer,
        None => via_proc_maps(maps, span),
    }
}

/// Like `anonymous_around`, by queries. None: the kernel has no such query.
pub(super) fn via_procmap_query(
    maps: &File,
    span: PageRange,
) -> Option<Result<PageRange, &'static str>> {
    let mut addr = span.start();
    let mut first = Some(mapping_at(maps, addr).ok()?);
    let next = || {
        let answer = match first.take() {
            Some(answer) => Ok(answer),
            None => mapping_at(maps, addr).map_err(|_| UNREADABLE),
        };
        if let Ok(Some(mapping)) = answer {
            addr = mapping.span.end();
        }
        answer.transpose()
    };
    Some(enclosing_mappings(span, std::iter::from_fn(next)))
}

/// Like `anonymous_around`, by reading the list of mappings up to the end of `span`.
pub(super) fn via_proc_maps(maps: File, span: PageRange) -> Result<PageRange, &'static str> {
    let mapping = |line: std::io::Result<String>| {
        parse(&line.map_err(|_| UNREADABLE)?).ok_or("/proc/self/maps has an unknown format")
    };
    enclosing_mappings(span, BufReader::new(maps).lines().map(mapping))
}

/// Like `anonymous_around`, from mappings in the order of their addresses.
fn enclosing_mappings(
    span: PageRange,
    mappings: impl Iterator<Item = Result<Mapping, &'static str>>,
) -> Result<PageRange, &'static str> {
    let mut found: Option<PageRange> = None;
    for mapping in mappings {
        let Mapping { span: mapping, anonymous } = mapping?;
        if mapping.end() <= span.start() {
            continue;
        }
        let expected_start = found.map_or(span.start(), |found| found.end());
        if mapping.start() > expected_start {
            break;
        }
        if !anonymous {
            return Err("it belongs to a file, a device or shared memory");
        }
        let start = found.map_or(mapping.start(), |found| found.start());
        found = PageRange::new(start, mapping.end());
        if mapping.end() >= span.end() {
            return found.ok_or("it is not mapped");
        }
    }
    Err("it is not mapped")
}

/// Parses a line of `/proc/self/maps`.
fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let parse_hex = |text| usize::from_str_radix(text, 16).ok();
    let span = PageRange::new(parse_hex(start)?, parse_hex(end)?)?;
    let private = words.next()?.ends_with('p');
    let inode = words.nth(2)?;
    Some(Mapping { span, anonymous: private && inode == "0" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_into_addresses_and_whether_the_memory_is_anonymous() {
        let line = "7f00-8000 rw-p 00000000 00:00 0                          [heap]";
        let span = PageRange::new(0x7f00, 0x8000).unwrap();
        assert_eq!(parse(line), Some(Mapping { span, anonymous: true }));
        for (line, anonymous) in [
            ("1000-2000 rw-s 00000000 00:01 2056 /dev/zero (deleted)", false),
            ("1000-2000 r--p 00001000 fe:00 77 /bin/with space", false),
            ("1000-2000 rw-p 00000000 00:00 0", true),
        ] {
            assert_eq!(parse(line).unwrap().anonymous, anonymous, "{line}");
        }
        for line in ["", "zz-1 rw-p 0 0 0", "2000-1000 rw-p 0 00:00 0", "1000-2000 rw-p"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn heap_code_and_unmapped_memory_are_distinguished() {
        let word = Box::new([7u8; 64]);
        let on_heap = PageRange::pages(word.as_ptr() as usize, 64).unwrap();
        assert!(anonymous_around(on_heap).unwrap().contains(on_heap));
        let code = PageRange::pages(parse as *const () as usize, 1).unwrap();
        assert!(anonymous_around(code).unwrap_err().contains("file"));
        let unmapped = PageRange::pages(4096, 1).unwrap();
        assert!(anonymous_around(unmapped).unwrap_err().contains("not mapped"));
    }
}
