//! Files that are mapped into processes: opened so that the right one is read, and kept across the
//! processes of a job, which have the same ones.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::cfi::UnwindTables;
use crate::elf::{Elf, MAX_FILE_BYTES, ReadAt};
use crate::maps::Mapping;
use crate::memory::{Memory, MemoryCopy, ProcessMemory};
use crate::symbols::SymbolTable;

/// Most files whose tables are kept.
const MAX_MODULES: usize = 2048;
/// Most bytes of tables that are kept; then all are read again when they are needed.
const MAX_KEPT_BYTES: u64 = 2 << 30;
/// So much of a file is compared with memory, if its device and inode say nothing.
const COMPARED_LEN: usize = 4096;
const MAX_NAME_LEN: usize = 255;

/// A file, or the kernel's vdso, as far as unwinding and naming need it.
#[derive(Debug)]
pub struct Module {
    /// Last part of its path.
    pub name: Arc<str>,
    /// How it was read; debug information is read from there when it is needed.
    pub origin: Origin,
    /// Its headers.
    pub elf: Elf,
    /// Its unwind tables.
    pub unwind: UnwindTables,
    symbols: OnceLock<SymbolTable>,
    symbol_budget: u64,
}

/// Where the bytes of a module are.
#[derive(Debug)]
pub enum Origin {
    /// In a file, which is kept open, and has or had this path.
    File(File, PathBuf),
    /// In memory.
    Memory(Vec<u8>),
}

impl ReadAt for Origin {
    fn read_at(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        match self {
            Self::File(file, _) => file.read_at(offset, len),
            Self::Memory(bytes) => bytes.read_at(offset, len),
        }
    }
}

impl Module {
    /// Reads headers and unwind tables. What cannot be read is empty: the name is there always.
    pub fn read(name: &str, origin: Origin) -> Self {
        let mut budget = MAX_FILE_BYTES;
        let elf = Elf::parse(&origin).unwrap_or_default();
        let unwind = UnwindTables::read(&elf, &origin, &mut budget);
        Self {
            name: clean_name(name).into(),
            origin,
            elf,
            unwind,
            symbols: OnceLock::new(),
            symbol_budget: budget,
        }
    }

    /// Its functions, which are read at the first call.
    pub fn symbols(&self) -> &SymbolTable {
        self.symbols.get_or_init(|| {
            let mut budget = self.symbol_budget;
            let mut table = SymbolTable::read(&self.elf, &self.origin, &mut budget);
            table.read_linkage(&self.elf, &self.origin, &mut budget);
            table
        })
    }

    fn kept_bytes(&self) -> u64 {
        let kept = ["symtab", "strtab", "dynsym", "dynstr", "eh_frame", "debug_frame"];
        let is_kept = |name: &[u8]| kept.iter().any(|kept| name.ends_with(kept.as_bytes()));
        let sections = self.elf.sections.iter().filter(|section| is_kept(&section.name));
        sections.map(|section| section.len.min(MAX_FILE_BYTES)).fold(0, u64::saturating_add)
    }
}

/// The last part of a path, without what a terminal would take for commands.
fn clean_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.chars().filter(|letter| !letter.is_control()).take(MAX_NAME_LEN).collect()
}

/// What tells one content of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    len: u64,
    modified_at: (i64, i64),
    changed_at: (i64, i64),
}

/// The modules that have been read.
#[derive(Debug, Default)]
pub struct ModuleCache {
    modules: HashMap<FileKey, Arc<Module>>,
    vdso: Option<Arc<Module>>,
    kept_bytes: u64,
}

impl ModuleCache {
    /// The module of a mapping of the process of thread `tid`, if its file can be read.
    pub fn module(&mut self, tid: i32, mapping: &Mapping) -> Option<Arc<Module>> {
        if !mapping.is_file() {
            return None;
        }
        let (located, metadata) = locate(tid, mapping)?;
        let key = FileKey {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified_at: (metadata.mtime(), metadata.mtime_nsec()),
            changed_at: (metadata.ctime(), metadata.ctime_nsec()),
        };
        if let Some(module) = self.modules.get(&key) {
            return Some(Arc::clone(module));
        }
        let file = open_located(&located)?;
        let origin = Origin::File(file, PathBuf::from(mapping.path()));
        let module = Arc::new(Module::read(mapping.path(), origin));
        if self.modules.len() >= MAX_MODULES || self.kept_bytes > MAX_KEPT_BYTES {
            self.modules.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes = self.kept_bytes.saturating_add(module.kept_bytes());
        self.modules.insert(key, Arc::clone(&module));
        Some(module)
    }

    /// The module of the code that the kernel mapped into a process.
    pub fn vdso(&mut self, copy: &MemoryCopy) -> Arc<Module> {
        let is_same = |module: &&Arc<Module>| match &module.origin {
            Origin::Memory(bytes) => *bytes == copy.bytes,
            Origin::File(..) => false,
        };
        if let Some(module) = self.vdso.as_ref().filter(is_same) {
            return Arc::clone(module);
        }
        let module = Arc::new(Module::read("[vdso]", Origin::Memory(copy.bytes.clone())));
        self.vdso = Some(Arc::clone(&module));
        module
    }
}

/// Finds the file of a mapping. The result is a descriptor for the path alone: nothing has been
/// opened yet that would wait, or act because of being opened.
fn locate(tid: i32, mapping: &Mapping) -> Option<(File, std::fs::Metadata)> {
    let path = mapping.path();
    let by_address =
        format!("/proc/{tid}/map_files/{:x}-{:x}", mapping.range.start, mapping.range.end);
    // The first is the file itself, but some kernels keep it for the administrator. The second is
    // right in the namespace of the process, the third after the process has exited.
    let exe = format!("/proc/{tid}/exe");
    let in_root = format!("/proc/{tid}/root{path}");
    let is_exact = |metadata: &std::fs::Metadata| {
        let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        (device, metadata.ino()) == (mapping.device, mapping.inode)
    };
    if let Some(found) = open_path(Path::new(&by_address)) {
        return Some(found);
    }
    for candidate in [in_root.as_str(), exe.as_str(), path] {
        if let Some(found) = open_path(Path::new(candidate)).filter(|(_, it)| is_exact(it)) {
            return Some(found);
        }
    }
    // A file system that has layers shows other numbers in the list of mappings. Then the begin of
    // the file, which has the build id, must be the same as in memory.
    let found = open_path(Path::new(&in_root))?;
    let file = open_located(&found.0)?;
    has_same_start(tid, mapping, &file).then_some(found)
}

fn open_path(path: &Path) -> Option<(File, std::fs::Metadata)> {
    let file = File::options().read(true).custom_flags(libc::O_PATH).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let kind = metadata.file_type();
    (kind.is_file() && !kind.is_fifo()).then_some((file, metadata))
}

fn open_located(path: &File) -> Option<File> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", path.as_raw_fd());
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(link).ok()
}

fn has_same_start(tid: i32, mapping: &Mapping, file: &File) -> bool {
    let text = std::fs::read(format!("/proc/{tid}/maps")).unwrap_or_default();
    let mappings = crate::maps::parse(&text);
    let is_first = |other: &&Mapping| {
        other.file_offset == 0
            && (other.device, other.inode) == (mapping.device, mapping.inode)
            && other.name == mapping.name
    };
    let Some(first) = mappings.iter().rfind(|it| is_first(it)) else { return false };
    let mut in_memory = vec![0; COMPARED_LEN];
    let read = ProcessMemory::new(tid).read(first.range.start, &mut in_memory);
    in_memory.truncate(read);
    let in_file = file.read_at(0, read as u64);
    read > 0 && in_file.is_some_and(|in_file| in_file == in_memory)
}
