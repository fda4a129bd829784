//! Finds functions and source lines for addresses in modules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::debug_file;
use crate::demangle::{clean, demangle};
use crate::frame::{Detail, Frame, SourceLine, Stack};
use crate::module::Module;
use crate::own_frames::{self, FunctionOrigin};
use crate::unwind::{CodePlace, StackEnd, UnwoundFrame, UnwoundThread};

/// Maximum number of addresses with cached names. If it is exceeded, the cache is emptied.
const MAX_KEPT_NAMES: usize = 1 << 19;

/// A function at an address. An address has several if functions are inlined, with the innermost
/// first.
#[derive(Debug, Clone)]
struct FunctionName {
    name: String,
    source: Option<SourceLine>,
    is_inlined: bool,
    origin: FunctionOrigin,
}

/// A cache of names.
#[derive(Debug, Default)]
pub struct NameCache {
    /// By the address of the module in memory. The map holds the module, so the address stays
    /// valid.
    modules: HashMap<usize, ModuleNames>,
    kept_names: usize,
}

#[derive(Debug)]
struct ModuleNames {
    module: Arc<Module>,
    names: HashMap<u64, Arc<[FunctionName]>>,
}

impl NameCache {
    /// Finds the names of all addresses of all threads. Call it once for many processes, because
    /// each call reads the debug information of each file once.
    pub fn find_names<'t>(&mut self, threads: impl Iterator<Item = &'t UnwoundThread>) {
        let mut wanted: BTreeMap<usize, (Arc<Module>, BTreeSet<u64>)> = BTreeMap::new();
        for frame in threads.flat_map(|thread| &thread.frames) {
            let UnwoundFrame::Code(frame) = frame else { continue };
            let CodePlace::Module(module, address) = &frame.place else { continue };
            let key = Arc::as_ptr(module).addr();
            let known = self.modules.get(&key);
            if known.is_none_or(|known| !known.names.contains_key(address)) {
                let entry = wanted.entry(key).or_insert_with(|| (Arc::clone(module), [].into()));
                entry.1.insert(*address);
            }
        }
        let count: usize = wanted.values().map(|(_, addresses)| addresses.len()).sum();
        if self.kept_names + count > MAX_KEPT_NAMES {
            self.modules.clear();
            self.kept_names = 0;
        }
        self.kept_names += count;
        for (key, (module, addresses)) in wanted {
            let addresses: Vec<u64> = addresses.into_iter().collect();
            let names = names_in(&module, &addresses);
            let entry = ModuleNames { module, names: HashMap::new() };
            self.modules.entry(key).or_insert(entry).names.extend(names);
        }
    }

    /// The stack of a thread, with the outermost frame first. The inside of SCore's libraries is
    /// one frame.
    pub fn stack(&self, thread: &UnwoundThread, detail: Detail) -> Stack {
        let end = match thread.end {
            StackEnd::Complete => None,
            StackEnd::Broken => Some(Frame::Broken),
            StackEnd::Truncated => Some(Frame::Truncated),
            StackEnd::NotStopped => Some(Frame::NotStopped),
        };
        let mut frames: Vec<(Frame, FunctionOrigin)> = end.map(unknown).into_iter().collect();
        for frame in thread.frames.iter().rev() {
            match frame {
                UnwoundFrame::Code(code) => self.add_frames(&code.place, detail, &mut frames),
                UnwoundFrame::Omitted(count) => frames.push(unknown(Frame::Omitted(*count as u64))),
            }
        }
        Stack { frames: own_frames::fold(frames) }
    }

    fn add_frames(
        &self,
        place: &CodePlace,
        detail: Detail,
        frames: &mut Vec<(Frame, FunctionOrigin)>,
    ) {
        let (module, address) = match place {
            CodePlace::Module(module, address) => (module, *address),
            CodePlace::Region(name, offset) => {
                let module = name.to_string();
                return frames.push(unknown(Frame::Address { module, offset: *offset }));
            }
            CodePlace::Nowhere(_) => return frames.push(unknown(Frame::Unmapped)),
            CodePlace::SignalReturn => return frames.push(unknown(Frame::Signal)),
        };
        let known = self.modules.get(&Arc::as_ptr(module).addr());
        let names = known.filter(|known| Arc::ptr_eq(&known.module, module));
        let names = names.and_then(|known| known.names.get(&address));
        match names.filter(|names| !names.is_empty()) {
            Some(names) => frames.extend(names.iter().rev().map(|function| {
                let frame = Frame::Function {
                    name: function.name.clone(),
                    module: module.name.to_string(),
                    source: function.source.clone().filter(|_| detail == Detail::Lines),
                    is_inlined: function.is_inlined,
                };
                (frame, function.origin)
            })),
            None => {
                let module = module.name.to_string();
                frames.push(unknown(Frame::Address { module, offset: address }));
            }
        }
    }
}

/// A frame whose function is unknown.
fn unknown(frame: Frame) -> (Frame, FunctionOrigin) {
    (frame, FunctionOrigin::Other)
}

/// The names of addresses in one module.
fn names_in(module: &Module, addresses: &[u64]) -> HashMap<u64, Arc<[FunctionName]>> {
    let debug = debug_file::debug_sections(module);
    let mut dwarf = debug.map(|debug| debug.frames(addresses)).unwrap_or_default();
    let mut split = None;
    let mut symbol_of = |address: u64| {
        let own = module.symbols().name_of(address);
        // A stripped library has names only for the functions that it exports. Its debug file has
        // all names.
        own.or_else(|| {
            let split = split.get_or_insert_with(|| debug_file::split_symbols(module));
            split.as_ref()?.name_of(address)
        })
    };
    let mut names = HashMap::new();
    for address in addresses {
        let mut frames = dwarf.remove(address).unwrap_or_default();
        let outer = frames.len().saturating_sub(1);
        let mut functions = Vec::new();
        // A function and those that are inlined into it have one symbol.
        let origin =
            FunctionOrigin::of(&module.name, module.symbols().name_of(*address).as_deref());
        for (index, frame) in frames.drain(..).enumerate() {
            let is_outer = index == outer;
            let symbol = frame.symbol.or_else(|| if is_outer { symbol_of(*address) } else { None });
            let Some(symbol) = symbol else { continue };
            let name = demangle(&symbol);
            functions.push(FunctionName {
                name,
                source: frame.source,
                is_inlined: !is_outer,
                origin,
            });
        }
        if functions.is_empty()
            && let Some(symbol) = symbol_of(*address)
        {
            let name = demangle(&symbol);
            functions.push(FunctionName { name, source: None, is_inlined: false, origin });
        }
        for function in &mut functions {
            function.name = clean(&function.name);
            function.origin = function.origin.of_inlined(&function.name);
        }
        names.insert(*address, functions.into());
    }
    names
}
