//! The files that are mapped into processes. This module makes sure that the right file is opened,
//! and caches the files, because the processes of a job share them.

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

/// Maximum number of files whose tables are cached.
const MAX_MODULES: usize = 2048;
/// Maximum bytes of cached tables. If it is reached, the cache is emptied.
const MAX_KEPT_BYTES: u64 = 2 << 30;
/// Number of bytes of a file that are compared with memory, if device and inode do not identify the
/// file.
const COMPARED_LEN: usize = 4096;
const MAX_NAME_LEN: usize = 255;

/// A file or the kernel's vdso, with the data that unwinding and naming need.
#[derive(Debug)]
pub struct Module {
    /// The last part of its path.
    pub name: Arc<str>,
    /// The file of the module. Debug information is read from it on demand.
    pub origin: Origin,
    /// Its headers.
    pub elf: Elf,
    /// Its unwind tables.
    pub unwind: UnwindTables,
    symbols: OnceLock<SymbolTable>,
    symbol_budget: u64,
}

/// The source of the bytes of a module.
#[derive(Debug)]
pub enum Origin {
    /// A file, which is kept open, and its present or former path.
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
    /// Reads headers and unwind tables. Parts that cannot be read are empty. The name is always
    /// present.
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

    /// The functions. They are read at the first call.
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

/// The last part of a path, without control characters, which a terminal could interpret.
fn clean_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.chars().filter(|letter| !letter.is_control()).take(MAX_NAME_LEN).collect()
}

/// Identifies one version of the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    inode: u64,
    len: u64,
    modified_at: (i64, i64),
    changed_at: (i64, i64),
}

/// A cache of modules.
#[derive(Debug, Default)]
pub struct ModuleCache {
    modules: HashMap<FileKey, Arc<Module>>,
    vdso: Option<Arc<Module>>,
    kept_bytes: u64,
}

impl ModuleCache {
    /// The module of a mapping in the process of thread `tid`, if its file can be read.
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

    /// The module of the code that the kernel has mapped into a process.
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

/// Finds the file of a mapping. Returns a path descriptor (O_PATH): this opens no file that could
/// block or have side effects when it is opened.
fn locate(tid: i32, mapping: &Mapping) -> Option<(File, std::fs::Metadata)> {
    let path = mapping.path();
    let by_address =
        format!("/proc/{tid}/map_files/{:x}-{:x}", mapping.range.start, mapping.range.end);
    // `by_address` is the file itself, but some kernels permit it only to root. `in_root` is
    // correct in the mount namespace of the process, and `exe` also finds a deleted program. The
    // plain path works after the process has exited.
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
    // A layered file system shows other numbers in the list of mappings. In this case the start of
    // the file, which contains the build id, must be the same as in memory.
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
