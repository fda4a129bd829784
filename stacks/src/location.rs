//! Finds the addresses in a process for the names and source lines that a user gives.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use score_proto::tool_command::Location;

use crate::debug_file;
use crate::maps::{self, Mapping};
use crate::module::{Module, ModuleCache};
use crate::symbols;

/// Maximum bytes of symbols that are read to find one name in one file.
const MAX_SYMBOL_BYTES: u64 = 1 << 30;

/// Maximum number of cached results. Each is a location in one file.
const MAX_KNOWN: usize = 1024;

/// The purpose of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Find instructions.
    Code,
    /// Find a value in memory.
    Data,
}

/// A part of a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The address of its first byte.
    pub address: u64,
    /// Its length in bytes, or 0 if it is unknown.
    pub len: u64,
}

/// A mapped file, and the difference between addresses in the process and in the file.
struct LoadedModule {
    module: Arc<Module>,
    bias: u64,
}

/// The places of a location in one file, at link-time addresses.
#[derive(Debug, Clone, Default)]
struct OwnPlaces {
    places: Vec<Place>,
    /// The next line with code.
    next_line: Option<u32>,
}

/// A cached result for one file. The processes of a job search for the same location one after the
/// other.
#[derive(Debug)]
struct KnownPlaces {
    module: Arc<Module>,
    location: Location,
    purpose: Purpose,
    found: OwnPlaces,
}

/// Finds locations, and caches the data that processes share.
#[derive(Debug, Default)]
pub struct LocationFinder {
    modules: ModuleCache,
    known: VecDeque<KnownPlaces>,
}

impl LocationFinder {
    /// Finds the places of a location. A line may have several. The program is searched before its
    /// libraries.
    ///
    /// # Errors
    /// One line: there is no such place.
    pub fn find(
        &mut self,
        pid: i32,
        location: &Location,
        purpose: Purpose,
    ) -> Result<Vec<Place>, String> {
        let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mappings = maps::parse(&text);
        let mut next_line = None;
        match (location, purpose) {
            (Location::Address(address), _) => match maps::find(&mappings, *address) {
                Some(it) if purpose == Purpose::Data || it.is_executable => {
                    return Ok(vec![Place { address: *address, len: 0 }]);
                }
                Some(_) => return Err(format!("{address:#x}: no code at this address")),
                None => return Err(format!("{address:#x}: no memory at this address")),
            },
            (Location::Line { file, line }, Purpose::Data) => {
                let what = "only memory can be watched: a variable or *ADDRESS";
                return Err(format!("{file}:{line}: {what}"));
            }
            (Location::Name(_), _) | (Location::Line { .. }, Purpose::Code) => {}
        }
        for LoadedModule { module, bias } in loaded_modules(pid, &mappings, &mut self.modules) {
            let found = self.own_places(&module, location, purpose);
            if !found.places.is_empty() {
                let shift = |place: &Place| Place {
                    address: place.address.wrapping_add(bias),
                    len: place.len,
                };
                return Ok(found.places.iter().map(shift).collect());
            }
            next_line = next_line.or(found.next_line);
        }
        Err(match (location, purpose, next_line) {
            (Location::Line { file, line }, _, Some(next)) => {
                format!("{file}:{line}: no code; the next line with code is {next}")
            }
            (Location::Line { file, line }, _, None) => {
                format!("{file}:{line}: no code; is the program compiled with -g?")
            }
            (Location::Name(name), Purpose::Data, _) => {
                format!("{name}: no global or static variable of this name")
            }
            (Location::Name(name), Purpose::Code, _) => {
                format!("{name}: no function of this name")
            }
            (Location::Address(address), ..) => format!("{address:#x}: no memory at this address"),
        })
    }

    fn own_places(
        &mut self,
        module: &Arc<Module>,
        location: &Location,
        purpose: Purpose,
    ) -> OwnPlaces {
        let is_same = |known: &&KnownPlaces| {
            Arc::ptr_eq(&known.module, module)
                && known.location == *location
                && known.purpose == purpose
        };
        if let Some(known) = self.known.iter().find(is_same) {
            return known.found.clone();
        }
        let found = look_up(module, location, purpose);
        if self.known.len() >= MAX_KNOWN {
            self.known.pop_front();
        }
        let (module, location, found_now) = (Arc::clone(module), location.clone(), found.clone());
        self.known.push_back(KnownPlaces { module, location, purpose, found: found_now });
        found
    }
}

/// The files with code, in the order of their addresses. The program comes first.
fn loaded_modules(pid: i32, mappings: &[Mapping], modules: &mut ModuleCache) -> Vec<LoadedModule> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.to_string_lossy();
    let mut code: Vec<&Mapping> =
        mappings.iter().filter(|mapping| mapping.is_executable && mapping.is_file()).collect();
    code.sort_by_key(|mapping| mapping.name != program);
    let mut seen = HashSet::new();
    let mut load = |mapping: &&Mapping| {
        if !seen.insert((mapping.device, mapping.inode)) {
            return None;
        }
        let module = modules.module(pid, mapping)?;
        let end = mapping.file_offset.saturating_add(mapping.range.end - mapping.range.start);
        let is_here = |offset: u64| (mapping.file_offset..end).contains(&offset);
        let segments = module.elf.segments.iter();
        let segment = segments.clone().find(|it| it.is_executable && is_here(it.offset));
        let bias = segment.map(|segment| {
            let start = mapping.range.start.wrapping_sub(mapping.file_offset);
            start.wrapping_add(segment.offset).wrapping_sub(segment.address)
        })?;
        Some(LoadedModule { module, bias })
    };
    code.iter().filter_map(&mut load).collect()
}

fn look_up(module: &Module, location: &Location, purpose: Purpose) -> OwnPlaces {
    let one = |address, len| vec![Place { address, len }];
    let places = match (location, purpose) {
        (Location::Line { file, line }, _) => {
            let debug = debug_file::debug_sections(module);
            let (addresses, next_line) =
                debug.map(|debug| debug.addresses_of_line(file, *line)).unwrap_or_default();
            let places = addresses.into_iter().map(|address| Place { address, len: 0 });
            return OwnPlaces { places: places.collect(), next_line };
        }
        (Location::Name(name), Purpose::Code) => {
            let own = module.symbols().address_of(name);
            let split = || debug_file::split_symbols(module)?.address_of(name);
            own.or_else(split).map(|address| one(address, 0))
        }
        (Location::Name(name), Purpose::Data) => {
            let mut budget = MAX_SYMBOL_BYTES;
            let own = symbols::variable(&module.elf, &module.origin, name, &mut budget);
            let variable = own.or_else(|| {
                let (elf, file) = debug_file::find(module)?;
                symbols::variable(&elf, &file, name, &mut budget)
            });
            variable.map(|(address, len)| one(address, len))
        }
        (Location::Address(_), _) => None,
    };
    OwnPlaces { places: places.unwrap_or_default(), next_line: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    static WATCHED_BY_TEST: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(7);

    #[inline(never)]
    fn function_of_test() -> u32 {
        WATCHED_BY_TEST.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn find(location: Location, purpose: Purpose) -> Result<Vec<Place>, String> {
        let own = std::process::id().cast_signed();
        LocationFinder::default().find(own, &location, purpose)
    }

    #[test]
    fn a_function_of_this_process_is_found_by_name_and_by_line() {
        assert_eq!(function_of_test(), 7);
        let own = (function_of_test as *const ()).addr() as u64;
        let name = "score_stacks::location::tests::function_of_test".to_owned();
        let places = find(Location::Name(name), Purpose::Code).unwrap();
        assert_eq!(places, [Place { address: own, len: 0 }]);
        let source = include_str!("location.rs");
        let line = source.lines().position(|line| line.contains("WATCHED_BY_TEST.load")).unwrap();
        let (file, line) = ("src/location.rs".to_owned(), line as u32 + 1);
        let places = find(Location::Line { file, line }, Purpose::Code).unwrap();
        assert!(places.iter().any(|it| (own..own + 64).contains(&it.address)), "{places:x?}");
    }

    #[test]
    fn a_variable_of_this_process_is_found_with_its_length() {
        let own = std::ptr::from_ref(&WATCHED_BY_TEST).addr() as u64;
        let name = "score_stacks::location::tests::WATCHED_BY_TEST".to_owned();
        let places = find(Location::Name(name), Purpose::Data).unwrap();
        assert_eq!(places, [Place { address: own, len: 4 }]);
    }

    #[test]
    fn a_location_that_does_not_exist_is_named_with_a_remedy() {
        let line = |line| Location::Line { file: "location.rs".to_owned(), line };
        let name = || Location::Name("no_such_name_anywhere".to_owned());
        for (location, purpose, part) in [
            (name(), Purpose::Code, "no_such_name_anywhere: no function"),
            (name(), Purpose::Data, "no_such_name_anywhere: no global or static variable"),
            (Location::Address(8), Purpose::Code, "0x8: no memory at this address"),
            (line(1), Purpose::Code, "the next line with code is"),
            (line(1_000_000), Purpose::Code, "compiled with -g"),
            (line(1), Purpose::Data, "only memory can be watched"),
        ] {
            let error = find(location, purpose).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let own = std::ptr::from_ref(&WATCHED_BY_TEST).addr() as u64;
        let error = find(Location::Address(own), Purpose::Code).unwrap_err();
        assert!(error.contains("no code"), "{error}");
    }
}
