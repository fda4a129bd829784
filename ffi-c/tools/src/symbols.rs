//! Finds addresses of symbols in a process: from the auxiliary vector, the loader's list of loaded
//! objects, and the symbol tables of their files.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use score_stacks::address::{address_of, entry_point};
use score_tools::wire::{CommandAnswer, CommandRequest, NoData};

use crate::connection::Connection;
use crate::failure::Failure;

const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_ENTRY: u64 = 9;
const PT_DYNAMIC: u64 = 2;
const DT_DEBUG: u64 = 21;
/// Bytes of a program header.
const HEADER_LEN: u64 = 56;
const MAX_HEADERS: u64 = 1024;
const MAX_DYNAMIC_ENTRIES: u64 = 1024;
const MAX_OBJECTS: usize = 4096;
const MAX_PATH_LEN: usize = 4096;
const PAGE_LEN: u64 = 4096;
/// Names of the string with the version of glibc: from 2.34 on, and in earlier versions.
const VERSION_NAMES: [&str; 2] = ["__nptl_version", "nptl_version"];
const MAX_VERSION_LEN: usize = 32;

/// A file that the process has loaded.
struct LoadedObject {
    /// The path of the object in the process. Empty: the object is the program.
    path: String,
    /// Difference between addresses in the process and in the file.
    bias: u64,
}

impl LoadedObject {
    fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Opens its file at the path in the process's root, or else in the root of this tool.
    fn open(&self, pid: i32) -> Option<File> {
        if self.path.is_empty() {
            return open_file(Path::new(&format!("/proc/{pid}/exe")));
        }
        let within = PathBuf::from(format!("/proc/{pid}/root{}", self.path));
        let paths = [within, PathBuf::from(&self.path)];
        // The vdso has a name, but no file.
        paths.iter().filter(|_| self.path.starts_with('/')).find_map(|path| open_file(path))
    }
}

/// Opens a regular file. Other files, such as FIFOs, could block this tool.
fn open_file(path: &Path) -> Option<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
}

/// Moves the object with this file name to the front; the others keep their order.
fn named_first(mut objects: Vec<LoadedObject>, name: Option<&str>) -> Vec<LoadedObject> {
    objects.sort_by_key(|it| name != Some(it.file_name()));
    objects
}

/// Reads the word at an offset; 0 if there is none.
fn word(bytes: &[u8], offset: usize) -> u64 {
    let word = bytes.get(offset..offset + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

impl Connection {
    /// Finds the address of a symbol in the object with this file name. If that object does not
    /// define the symbol, searches the other objects in the loader's order.
    pub fn look_up(&mut self, rank: u32, object: Option<&str>, name: &str) -> Result<u64, Failure> {
        let pid = self.process_id(rank)?;
        let objects = named_first(self.loaded_objects(rank, pid)?, object);
        let found = objects.iter().find_map(|object| {
            Some(object.bias.wrapping_add(address_of(&object.open(pid)?, name)?))
        });
        found.ok_or_else(|| Failure::NoSymbol { rank, name: name.to_owned() })
    }

    /// Reads the version of the glibc of a process.
    pub fn glibc_version(&mut self, rank: u32) -> Result<String, Failure> {
        let address = match self.look_up(rank, None, VERSION_NAMES[0]) {
            Err(Failure::NoSymbol { .. }) => self.look_up(rank, None, VERSION_NAMES[1])?,
            result => result?,
        };
        self.read_text(rank, address, MAX_VERSION_LEN)
    }

    /// Lists the program and the objects that its loader has loaded, in the loader's order.
    fn loaded_objects(&mut self, rank: u32, pid: i32) -> Result<Vec<LoadedObject>, Failure> {
        let request = CommandRequest::GetAuxVectors(NoData {});
        let vector = self.query(rank, 0, request, |answer| match answer {
            CommandAnswer::GetAuxVectors(vector) => Some(vector.list.clone()),
            _ => None,
        })?;
        let value = |key| vector.chunks_exact(2).find(|pair| pair[0] == key).map_or(0, |it| it[1]);
        let mut program = LoadedObject { path: String::new(), bias: 0 };
        let entry = program.open(pid).and_then(|file| entry_point(&file)).unwrap_or_default();
        program.bias = value(AT_ENTRY).wrapping_sub(entry);
        let mut objects = vec![program];
        if value(AT_PHENT) == HEADER_LEN {
            let (start, count) = (value(AT_PHDR), value(AT_PHNUM).min(MAX_HEADERS));
            let bias = objects[0].bias;
            if let Some(map) = self.first_link_map(rank, start, count, bias)? {
                self.add_link_maps(rank, map, &mut objects)?;
            }
        }
        Ok(objects)
    }

    /// Finds the first entry of the loader's list, whose address is in the program's dynamic
    /// section. `None`: the program has no loader, or the loader has not run yet.
    fn first_link_map(
        &mut self,
        rank: u32,
        start: u64,
        count: u64,
        bias: u64,
    ) -> Result<Option<u64>, Failure> {
        let mut headers = vec![0; (count * HEADER_LEN) as usize];
        self.read_memory(rank, start, &mut headers)?;
        let is_dynamic = |header: &&[u8]| word(header, 0) & 0xffff_ffff == PT_DYNAMIC;
        let Some(header) = headers.chunks_exact(HEADER_LEN as usize).find(is_dynamic) else {
            return Ok(None);
        };
        let (start, len) = (bias.wrapping_add(word(header, 16)), word(header, 40));
        let mut entries = vec![0; (len.min(MAX_DYNAMIC_ENTRIES * 16)) as usize];
        self.read_memory(rank, start, &mut entries)?;
        let debug = entries.chunks_exact(16).find(|entry| word(entry, 0) == DT_DEBUG);
        let Some(debug) = debug.map(|entry| word(entry, 8)).filter(|debug| *debug != 0) else {
            return Ok(None);
        };
        // struct r_debug: version, and the list.
        let mut head = [0; 16];
        self.read_memory(rank, debug, &mut head)?;
        Ok(Some(word(&head, 8)).filter(|map| *map != 0))
    }

    /// Adds the objects of the loader's list, except the first one, which is the program. The
    /// process may change the list meanwhile: the list ends at an entry that cannot be read.
    fn add_link_maps(
        &mut self,
        rank: u32,
        first: u64,
        objects: &mut Vec<LoadedObject>,
    ) -> Result<(), Failure> {
        let mut next = first;
        for index in 0..MAX_OBJECTS {
            // struct link_map: distance, name, dynamic section, next.
            let mut map = [0; 32];
            match self.read_memory(rank, next, &mut map) {
                Err(Failure::Command { .. }) => break,
                result => result?,
            }
            if index > 0 {
                match self.read_text(rank, word(&map, 8), MAX_PATH_LEN) {
                    Ok(path) if path.is_empty() => {}
                    Ok(path) => objects.push(LoadedObject { path, bias: word(&map, 0) }),
                    Err(Failure::Command { .. }) => {}
                    Err(failure) => return Err(failure),
                }
            }
            next = word(&map, 24);
            if next == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads a string that ends with NUL, or after `max_len` bytes.
    fn read_text(&mut self, rank: u32, address: u64, max_len: usize) -> Result<String, Failure> {
        let mut text = Vec::new();
        while text.len() < max_len {
            let start = address.wrapping_add(text.len() as u64);
            // The next page may not be mapped.
            let len = (PAGE_LEN - start % PAGE_LEN).min(256) as usize;
            let mut part = vec![0; len];
            self.read_memory(rank, start, &mut part)?;
            let end = part.iter().position(|byte| *byte == 0);
            text.extend_from_slice(&part[..end.unwrap_or(len)]);
            if end.is_some() {
                break;
            }
        }
        text.truncate(max_len);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_object_is_first_and_the_others_keep_their_order() {
        let order = |name| {
            let paths = ["", "/lib/liba.so", "/lib/libc.so.6", "/x/libb.so"];
            let object = |path: &str| LoadedObject { path: path.to_owned(), bias: 0 };
            let sorted = named_first(paths.map(object).into(), name);
            sorted.into_iter().map(|it| it.file_name().to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order(None), " liba.so libc.so.6 libb.so");
        assert_eq!(order(Some("libc.so.6")), "libc.so.6  liba.so libb.so");
        assert_eq!(order(Some("libnone.so")), order(None));
    }

    #[test]
    fn only_files_are_opened() {
        assert!(open_file(Path::new("/proc/self/exe")).is_some());
        assert!(open_file(Path::new("/dev/null")).is_none());
        let program = LoadedObject { path: String::new(), bias: 0 };
        assert!(program.open(std::process::id().cast_signed()).is_some());
        let vdso = LoadedObject { path: "linux-vdso.so.1".to_owned(), bias: 0 };
        assert!(vdso.open(std::process::id().cast_signed()).is_none());
    }
}
