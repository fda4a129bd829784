//! The servers of a debugger that the starter starts on the hosts of the job. The debugger
//! describes them in `MPIR_executable_path`, `MPIR_server_arguments` and `MPIR_subset_attach`. The
//! servers are a tool of the job, like a tool of start_tool.

use std::fs::File;
use std::os::unix::fs::FileExt;

use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::tool_start::{ToolAction, ToolProgram};

use super::process_table::CompleteTable;
use super::subset;
use super::symbols;

/// The request to start the servers of the debugger. `None` if it requests no servers.
///
/// # Errors
/// The variable that is invalid, and the reason. No servers must be started in this case.
pub fn requested_start(table: &CompleteTable) -> Result<Option<ToolAction>, String> {
    let Some(path) = parse_path(&symbols::MPIR_executable_path.read())? else {
        return Ok(None);
    };
    let arguments = parse_arguments(&symbols::MPIR_server_arguments.read())?;
    let text = subset_text(symbols::subset_address())?;
    let rows = u32::try_from(table.rows.len()).unwrap_or(u32::MAX);
    let hosts = match subset::parse(&text, rows)? {
        Some(ranks) => hosts_of(table, &ranks),
        None => Vec::new(),
    };
    Ok(Some(ToolAction::Start { program: ToolProgram { path, arguments }, hosts, files: None }))
}

/// The names of the hosts of these rows. Each name is returned once.
fn hosts_of(table: &CompleteTable, ranks: &NodeSet) -> Vec<String> {
    let row = |rank: u32| table.rows.get(rank as usize);
    let indexes: NodeSet = ranks.iter().filter_map(row).map(|row| row.host as u32).collect();
    indexes.iter().filter_map(|index| table.hosts.get(index as usize).cloned()).collect()
}

/// The path in an array. `None` if the array is empty.
fn parse_path(array: &[u8]) -> Result<Option<OsBytes>, String> {
    let length = array.iter().position(|byte| *byte == 0);
    let length = length.ok_or("MPIR_executable_path: there is no NUL in its 256 bytes")?;
    match &array[..length] {
        [] => Ok(None),
        path @ [b'/', ..] => Ok(Some(OsBytes(path.to_vec()))),
        path => {
            let path = path.escape_ascii();
            Err(format!("MPIR_executable_path: '{path}' does not begin with /"))
        }
    }
}

/// The arguments in an array: strings that end with NUL. An empty string ends the list.
fn parse_arguments(array: &[u8]) -> Result<Vec<OsBytes>, String> {
    let mut arguments = Vec::new();
    let mut rest = array;
    loop {
        let length = rest.iter().position(|byte| *byte == 0).ok_or_else(|| {
            let size = array.len();
            format!("MPIR_server_arguments: no empty string closes the list in its {size} bytes")
        })?;
        if length == 0 {
            return Ok(arguments);
        }
        arguments.push(OsBytes(rest[..length].to_vec()));
        rest = &rest[length + 1..];
    }
}

/// The C string at an address of this process that a debugger has chosen. It is read from
/// /proc/self/mem: if the address is not mapped, the read fails, whereas a plain read would kill
/// this process.
fn subset_text(address: usize) -> Result<Vec<u8>, String> {
    if address == 0 {
        return Ok(Vec::new());
    }
    let unreadable = |error: std::io::Error| {
        format!("MPIR_subset_attach: the text at {address:#x} cannot be read: {error}")
    };
    let memory = File::open("/proc/self/mem").map_err(unreadable)?;
    let mut text = [0; symbols::SUBSET_SIZE];
    let mut filled = 0;
    while filled < text.len() && !text[..filled].contains(&0) {
        // Read only up to the next page, because that page may not be mapped.
        let position = address.wrapping_add(filled);
        let left_in_page = PAGE_SIZE - position % PAGE_SIZE;
        let end = text.len().min(filled + left_in_page);
        match memory.read_at(&mut text[filled..end], position as u64).map_err(unreadable)? {
            0 => return Err(unreadable(std::io::ErrorKind::UnexpectedEof.into())),
            count => filled += count,
        }
    }
    let length = text[..filled].iter().position(|byte| *byte == 0);
    let length = length.ok_or("MPIR_subset_attach: there is no NUL in its 1024 bytes")?;
    Ok(text[..length].to_vec())
}

/// A divisor of every page size.
const PAGE_SIZE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::super::symbols::Row;
    use super::*;

    #[test]
    fn each_host_of_a_subset_is_named_once() {
        let row = |host, pid| Row { host, program: 0, pid };
        let hosts = ["a", "b", "c"].map(str::to_owned).to_vec();
        let table = CompleteTable { stage: 0, hosts, rows: vec![row(2, 1), row(0, 2), row(2, 3)] };
        let named = |ranks: &[u32]| hosts_of(&table, &ranks.iter().copied().collect());
        assert_eq!(named(&[0, 2]), ["c"]);
        assert_eq!(named(&[0, 1, 2, 9]), ["a", "c"]);
    }

    #[test]
    fn a_path_is_absolute_and_ends_within_its_array() {
        assert_eq!(parse_path(&[0; 256]), Ok(None));
        assert_eq!(parse_path(b"/bin/tool\0rest"), Ok(Some(OsBytes(b"/bin/tool".to_vec()))));
        assert!(parse_path(b"tool\0").unwrap_err().contains("'tool'"));
        assert!(parse_path(&[b'/'; 256]).unwrap_err().contains("NUL"));
    }

    #[test]
    fn arguments_end_with_an_empty_string_within_their_array() {
        let words = |array: &[u8]| {
            parse_arguments(array).map(|list| list.into_iter().map(|word| word.0).collect())
        };
        assert_eq!(words(&[0; 4]), Ok(vec![]));
        assert_eq!(words(b"-a\0b c\0\0-ignored\0\0"), Ok(vec![b"-a".to_vec(), b"b c".to_vec()]));
        for open in [&b""[..], b"-a\0", b"-a\0b", &[b'x'; 4096]] {
            assert!(words(open).unwrap_err().contains("closes the list"), "{open:?}");
        }
    }

    #[test]
    fn a_text_is_read_up_to_its_end_and_no_address_ends_this_process() {
        assert_eq!(subset_text(0), Ok(Vec::new()));
        let text = c"0-3:2";
        assert_eq!(subset_text(text.as_ptr().addr()), Ok(b"0-3:2".to_vec()));
        let open = vec![b'1'; 2 * symbols::SUBSET_SIZE];
        assert!(subset_text(open.as_ptr().addr()).unwrap_err().contains("no NUL"));
        for address in [1, 8, usize::MAX, usize::MAX - 2000, 1 << 63] {
            assert!(subset_text(address).unwrap_err().contains("cannot be read"), "{address:#x}");
        }
    }
}
