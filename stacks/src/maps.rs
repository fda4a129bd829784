//! Parses the mappings of a process from the text of `/proc/PID/maps`.

use std::ops::Range;

/// Maximum number of mappings of one process. Code in further mappings is shown as an address.
pub const MAX_MAPPINGS: usize = 1 << 16;

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The range of addresses.
    pub range: Range<u64>,
    /// Whether the process may read the memory.
    pub is_readable: bool,
    /// Whether the process may execute the memory.
    pub is_executable: bool,
    /// The offset in the file at which the mapping begins.
    pub file_offset: u64,
    /// Major and minor number of the file's device. Both are 0 if there is no file.
    pub device: (u32, u32),
    /// The inode of the file, or 0 if there is no file.
    pub inode: u64,
    /// The path, a name in brackets, or an empty string.
    pub name: String,
}

impl Mapping {
    /// Whether a file is mapped. The file has or had the path [`name`](Self::name).
    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.name.starts_with('/')
    }

    /// Whether the file had been unlinked or replaced when the mapping was read.
    pub fn is_deleted(&self) -> bool {
        self.is_file() && self.name.ends_with(DELETED)
    }

    /// The path, without the kernel's mark of an unlinked file.
    pub fn path(&self) -> &str {
        self.name.strip_suffix(DELETED).unwrap_or(&self.name)
    }
}

const DELETED: &str = " (deleted)";

/// Parses all mappings and sorts them by address. Invalid lines are skipped.
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    let lines = text.split(|byte| *byte == b'\n');
    let mut mappings: Vec<Mapping> =
        lines.filter_map(parse_line).filter(|mapping| !mapping.range.is_empty()).collect();
    mappings.truncate(MAX_MAPPINGS);
    // The kernel lists mappings in this order. Sorting makes sure that other text cannot mislead
    // the binary search.
    mappings.sort_by_key(|mapping| mapping.range.start);
    mappings
}

/// The mapping that contains `address`.
pub fn find(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.range.start <= address);
    mappings[..after].last().filter(|mapping| mapping.range.contains(&address))
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = split_at_blank(line)?;
    let (permissions, rest) = split_at_blank(rest)?;
    let (file_offset, rest) = split_at_blank(rest)?;
    let (device, rest) = split_at_blank(rest)?;
    let (inode, name) = split_at_blank(rest).unwrap_or((rest, b""));
    let (start, end) = split_at(range, b'-')?;
    let (major, minor) = split_at(device, b':')?;
    Some(Mapping {
        range: hexadecimal(start)?..hexadecimal(end)?,
        is_readable: permissions.first() == Some(&b'r'),
        is_executable: permissions.get(2) == Some(&b'x'),
        file_offset: hexadecimal(file_offset)?,
        device: (
            u32::try_from(hexadecimal(major)?).ok()?,
            u32::try_from(hexadecimal(minor)?).ok()?,
        ),
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        name: String::from_utf8_lossy(name.trim_ascii_start()).into_owned(),
    })
}

fn split_at_blank(text: &[u8]) -> Option<(&[u8], &[u8])> {
    split_at(text, b' ')
}

fn split_at(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let index = text.iter().position(|byte| *byte == separator)?;
    Some((&text[..index], &text[index + 1..]))
}

/// Parses a number of up to 16 hexadecimal digits. It works on bytes, because this is fast and the
/// process is stopped meanwhile.
fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        Some(number << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
55d0c0a00000-55d0c0a02000 r-xp 00001000 fe:01 1234                       /usr/bin/with blank
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
7f0000002000-7f0000003000 r-xp 00000000 00:01 77                         /memfd:code (deleted)
not a mapping
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn lines_of_the_kernel_are_read() {
        let mappings = parse(TEXT);
        assert_eq!(mappings.len(), 4);
        let program = &mappings[0];
        assert_eq!(program.range, 0x55d0_c0a0_0000..0x55d0_c0a0_2000);
        assert_eq!((program.file_offset, program.device), (0x1000, (0xfe, 1)));
        assert_eq!((program.inode, program.path()), (1234, "/usr/bin/with blank"));
        assert!(program.is_executable && program.is_file() && !program.is_deleted());
        assert!(!mappings[1].is_file() && mappings[1].name.is_empty());
        assert!(mappings[2].is_deleted());
        assert_eq!(mappings[2].path(), "/memfd:code");
        assert_eq!(mappings[3].name, "[stack]");
    }

    #[test]
    fn an_address_is_found_in_its_mapping_only() {
        let mappings = parse(TEXT);
        assert_eq!(find(&mappings, 0x7ffc_0000_0000), mappings.last());
        assert_eq!(find(&mappings, 0x7ffc_0002_1000), None);
        assert_eq!(find(&mappings, 0x7f00_0000_1000), None);
        assert_eq!(find(&mappings, 0), None);
    }

    #[test]
    fn own_mappings_have_the_code_of_this_test() {
        let mappings = parse(&std::fs::read("/proc/self/maps").unwrap());
        let code: fn() = own_mappings_have_the_code_of_this_test;
        let mapping = find(&mappings, code as usize as u64).expect("this function is mapped");
        assert!(mapping.is_executable);
        assert_eq!(mapping.path(), std::env::current_exe().unwrap().to_str().unwrap());
    }
}
