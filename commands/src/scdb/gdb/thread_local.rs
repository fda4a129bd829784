//! Finds the addresses of thread-local variables, for the packet `qGetTLSAddr` of gdb. The crate
//! gdbstub does not support this packet.
//!
//! The computation is that of glibc's `td_thr_tls_get_addr`: the thread's vector of modules (DTV)
//! has the block of each module that has thread-local variables. All offsets that differ between
//! versions of glibc are read from the symbols that glibc has for libthread_db.

use super::rank::RankResult;

/// The packet, up to its parameters.
const QUESTION: &[u8] = b"$qGetTLSAddr:";
/// Offset of the DTV's address in the thread control block.
const DTV: u64 = 8;
/// Length of an entry of the DTV. Entry 0 has its generation, entry -1 its number of modules.
const DTV_ENTRY_LEN: u64 = 16;
/// The lowest bit of a block that is not allocated yet.
const IS_UNALLOCATED: u64 = 1;
/// Offsets in `struct link_map`: the bias, the name, and the neighbours.
const BIAS: usize = 0;
const NAME: usize = 8;
const NEXT: usize = 24;
const PREVIOUS: usize = 32;
const LINK_MAP_LEN: usize = 40;
/// Length of the head of a list of slots (its number of slots, the next list), and of a slot (its
/// generation, its module).
const SLOTS_HEAD_LEN: u64 = 16;
const SLOT_LEN: u64 = 16;
/// The rank can write all of these structures, so that each list may be endless.
const MAX_OBJECTS: usize = 4096;
const MAX_SLOT_LISTS: usize = 4096;
const MAX_NAME_LEN: usize = 4096;

/// The question of a debugger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadLocalQuestion {
    /// The thread.
    pub thread: u32,
    /// The variable's offset in the block of its module.
    offset: u64,
    /// The address of the module's `struct link_map`.
    link_map: u64,
}

impl ThreadLocalQuestion {
    /// Takes the question from the beginning of received bytes. Returns the question, or `None` if
    /// its parameters are wrong, and the length of the packet. Returns nothing if the bytes begin
    /// with another packet, or have only a part of the question.
    pub fn take(bytes: &[u8]) -> Option<(Option<Self>, usize)> {
        let rest = bytes.strip_prefix(QUESTION)?;
        let end = rest.iter().position(|byte| *byte == b'#')?;
        // Two digits of the checksum follow.
        let length = QUESTION.len() + end + 3;
        (bytes.len() >= length).then(|| (Self::parse(&rest[..end]), length))
    }

    /// The address of the `struct link_map` of the variable's module.
    pub fn link_map(&self) -> u64 {
        self.link_map
    }

    fn parse(parameters: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(parameters).ok()?.split(',');
        let (thread, offset, link_map) = (parts.next()?, parts.next()?, parts.next()?);
        // If gdb debugs several processes, the thread has the form pPROCESS.THREAD.
        let thread = thread.split_once('.').map_or(thread, |(_, thread)| thread);
        Some(Self {
            thread: u32::from_str_radix(thread, 16).ok()?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            link_map: u64::from_str_radix(link_map, 16).ok()?,
        })
    }
}

/// The reply to a question, as a packet.
pub fn reply(address: Option<u64>) -> Vec<u8> {
    let text = address.map_or("E01".to_owned(), |address| format!("{address:x}"));
    let sum = text.bytes().fold(0_u8, u8::wrapping_add);
    format!("${text}#{sum:02x}").into_bytes()
}

/// A process with a dynamic loader.
pub trait LoadedProcess {
    /// Reads memory.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> RankResult<()>;

    /// The link-time address of a symbol in the file at this path of the process.
    fn symbol(&mut self, path: &[u8], name: &str) -> Option<u64>;
}

fn word(process: &mut impl LoadedProcess, address: u64) -> RankResult<u64> {
    let mut bytes = [0; 8];
    process.read(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// An object that the loader has loaded.
struct LoadedObject {
    path: Vec<u8>,
    bias: u64,
}

impl LoadedObject {
    fn is_named(&self, start: &[u8]) -> bool {
        self.path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(start))
    }

    /// The address of a symbol in the process.
    fn address_of(&self, process: &mut impl LoadedProcess, name: &str) -> Option<u64> {
        Some(self.bias.wrapping_add(process.symbol(&self.path, name)?))
    }

    /// The offset of a field. libthread_db reads it from a symbol with three numbers: bits of the
    /// field, number of elements, offset in bytes.
    fn field(&self, process: &mut impl LoadedProcess, name: &str) -> RankResult<Option<u64>> {
        let Some(address) = self.address_of(process, name) else { return Ok(None) };
        let mut bytes = [0; 12];
        process.read(address, &mut bytes)?;
        let offset = [bytes[8], bytes[9], bytes[10], bytes[11]];
        Ok(Some(u64::from(u32::from_le_bytes(offset))))
    }
}

/// Reads a text up to its NUL, in blocks that never cross the end of a page, because the next page
/// may not exist.
fn text(process: &mut impl LoadedProcess, address: u64) -> RankResult<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < MAX_NAME_LEN {
        let here = address.wrapping_add(text.len() as u64);
        let mut bytes = vec![0; (256 - here % 256) as usize];
        process.read(here, &mut bytes)?;
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&bytes[..end]);
            break;
        }
        text.extend(bytes);
    }
    Ok(text)
}

/// Lists the objects of the loader's list that contains this one.
fn loaded_objects(
    process: &mut impl LoadedProcess,
    link_map: u64,
) -> RankResult<Vec<LoadedObject>> {
    let mut read = |address: u64| -> RankResult<[u8; LINK_MAP_LEN]> {
        let mut bytes = [0; LINK_MAP_LEN];
        process.read(address, &mut bytes)?;
        Ok(bytes)
    };
    let field = |map: &[u8; LINK_MAP_LEN], offset: usize| {
        map[offset..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
    };
    let mut maps = vec![read(link_map)?];
    for direction in [PREVIOUS, NEXT] {
        let mut next = field(&maps[0], direction);
        while next != 0 && maps.len() < MAX_OBJECTS {
            let map = read(next)?;
            next = field(&map, direction);
            maps.push(map);
        }
    }
    let objects = maps.iter().map(|map| {
        Ok(LoadedObject { path: text(process, field(map, NAME))?, bias: field(map, BIAS) })
    });
    objects.collect()
}

/// The data that differ between versions of glibc.
#[derive(Debug, Clone, Copy)]
pub struct ThreadLocalLayout {
    /// Offset of the module's number in `struct link_map`.
    module_number: u64,
    /// The address of the pointer to the first list of slots, which has the generation of each
    /// module.
    first_slots: u64,
}

impl ThreadLocalLayout {
    /// Finds the layout in the files of the C library and of the loader. `None`: the process has
    /// another C library than glibc.
    pub fn find(process: &mut impl LoadedProcess, link_map: u64) -> RankResult<Option<Self>> {
        let objects = loaded_objects(process, link_map)?;
        let Some(loader) = objects.iter().find(|object| object.is_named(b"ld-linux")) else {
            return Ok(None);
        };
        let Some(loader_data) = loader.address_of(process, "_rtld_global") else {
            return Ok(None);
        };
        // Before glibc 2.34 the symbols for libthread_db are in libpthread.
        let is_library = |it: &&LoadedObject| it.is_named(b"libc.so") || it.is_named(b"libpthread");
        for library in objects.iter().filter(is_library) {
            let module_number = library.field(process, "_thread_db_link_map_l_tls_modid")?;
            let slots = "_thread_db_rtld_global__dl_tls_dtv_slotinfo_list";
            if let (Some(module_number), Some(offset)) =
                (module_number, library.field(process, slots)?)
            {
                let first_slots = loader_data.wrapping_add(offset);
                return Ok(Some(Self { module_number, first_slots }));
            }
        }
        Ok(None)
    }

    /// The generation of a module, which is the one in which the module was loaded. `None`: the
    /// module is not loaded.
    fn generation(
        &self,
        process: &mut impl LoadedProcess,
        module: u64,
        link_map: u64,
    ) -> RankResult<Option<u64>> {
        let (mut list, mut first) = (word(process, self.first_slots)?, 0);
        for _ in 0..MAX_SLOT_LISTS {
            if list == 0 {
                break;
            }
            let count = word(process, list)?;
            if module - first < count {
                let slot = list.wrapping_add(SLOTS_HEAD_LEN + (module - first) * SLOT_LEN);
                let owner = word(process, slot.wrapping_add(8))?;
                let generation = word(process, slot)?;
                return Ok((owner == link_map).then_some(generation));
            }
            first += count;
            list = word(process, list.wrapping_add(8))?;
        }
        Ok(None)
    }

    /// The requested address. `None`: the module has no thread-local variables, or
    /// the thread has not used them yet. `thread_pointer` is the base of the segment register fs.
    pub fn address(
        &self,
        process: &mut impl LoadedProcess,
        thread_pointer: u64,
        question: ThreadLocalQuestion,
    ) -> RankResult<Option<u64>> {
        let ThreadLocalQuestion { link_map, offset, .. } = question;
        let module = word(process, link_map.wrapping_add(self.module_number))?;
        if module == 0 || module > u64::from(u32::MAX) {
            return Ok(None);
        }
        let vector = word(process, thread_pointer.wrapping_add(DTV))?;
        let modules = word(process, vector.wrapping_sub(DTV_ENTRY_LEN))?;
        let Some(generation) = self.generation(process, module, link_map)? else {
            return Ok(None);
        };
        // A thread updates its vector when it uses a variable of a module that was loaded later.
        if module > modules || word(process, vector)? < generation {
            return Ok(None);
        }
        let block = word(process, vector.wrapping_add(module * DTV_ENTRY_LEN))?;
        Ok((block & IS_UNALLOCATED == 0).then(|| block.wrapping_add(offset)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileExt;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::mpsc::channel;

    use score_stacks::address::address_of;

    use super::*;

    thread_local! {
        static MARK: Cell<u64> = const { Cell::new(1) };
    }

    /// The process of the test.
    struct ThisProcess(File);

    impl LoadedProcess for ThisProcess {
        fn read(&mut self, address: u64, bytes: &mut [u8]) -> RankResult<()> {
            Ok(self.0.read_exact_at(bytes, address)?)
        }

        fn symbol(&mut self, path: &[u8], name: &str) -> Option<u64> {
            address_of(&File::open(OsStr::from_bytes(path)).ok()?, name)
        }
    }

    /// The program's entry in the loader's list.
    fn program(process: &mut ThisProcess) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.contains("/ld-linux")).unwrap();
        let bias = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let path = &line[line.find('/').unwrap()..];
        let debug = bias + process.symbol(path.as_bytes(), "_r_debug").unwrap();
        word(process, debug + 8).unwrap()
    }

    // Promise (tools): gdb reads the thread-local variables of each thread through scdb.
    #[test]
    fn the_variables_of_each_thread_of_this_process_are_found() {
        let offset_in_thread = |value: u64| {
            let (address_sender, addresses) = channel();
            let (end, ended) = channel::<()>();
            let thread = std::thread::spawn(move || {
                MARK.set(value);
                address_sender.send(MARK.with(|mark| std::ptr::from_ref(mark) as u64)).unwrap();
                _ = ended.recv();
            });
            let variable = addresses.recv().unwrap();
            let mut process = ThisProcess(File::open("/proc/self/mem").unwrap());
            let link_map = program(&mut process);
            let layout = ThreadLocalLayout::find(&mut process, link_map).unwrap().unwrap();
            // On x86-64 glibc's pthread_t is the thread pointer.
            let thread_pointer = thread.as_pthread_t() as u64;
            let question = ThreadLocalQuestion { thread: 1, offset: 0, link_map };
            let block = layout.address(&mut process, thread_pointer, question).unwrap().unwrap();
            // The program's block ends at the thread pointer and has the variable.
            assert!(block <= variable && variable < thread_pointer, "{block:x} {variable:x}");
            let offset = variable - block;
            let question = ThreadLocalQuestion { offset, ..question };
            let address = layout.address(&mut process, thread_pointer, question).unwrap().unwrap();
            assert_eq!(word(&mut process, address).unwrap(), value);
            // The module of the slot is another one.
            let lie = ThreadLocalQuestion { link_map: link_map + 8, ..question };
            assert!(!matches!(layout.address(&mut process, thread_pointer, lie), Ok(Some(_))));
            drop(end);
            thread.join().unwrap();
            offset
        };
        assert_eq!(offset_in_thread(77), offset_in_thread(78));
    }

    /// A process whose lists have no end.
    struct Endless;

    impl LoadedProcess for Endless {
        fn read(&mut self, _: u64, bytes: &mut [u8]) -> RankResult<()> {
            bytes.fill(1);
            Ok(())
        }

        fn symbol(&mut self, _: &[u8], _: &str) -> Option<u64> {
            Some(1)
        }
    }

    #[test]
    fn hostile_lists_end_and_unreadable_memory_is_an_error() {
        assert!(ThreadLocalLayout::find(&mut Endless, 1).unwrap().is_none());
        let layout = ThreadLocalLayout { module_number: 0, first_slots: 0 };
        let question = ThreadLocalQuestion { thread: 1, offset: 0, link_map: 1 };
        assert_eq!(layout.address(&mut Endless, 1, question).unwrap(), None);
        let mut process = ThisProcess(File::open("/proc/self/mem").unwrap());
        let error = ThreadLocalLayout::find(&mut process, 8).unwrap_err();
        assert!(error.to_string().contains(&io::Error::from_raw_os_error(libc::EIO).to_string()));
    }

    #[test]
    fn the_packet_is_taken_as_a_whole() {
        let question = ThreadLocalQuestion { thread: 0x1f, offset: 0x20, link_map: 0x7f00 };
        for (bytes, expected) in [
            (&b"$qGetTLSAddr:p2.1f,20,7f00#aa+$m"[..], Some((Some(question), 29))),
            (b"$qGetTLSAddr:1f,20,7f00#aa", Some((Some(question), 26))),
            (b"$qGetTLSAddr:1f,20#aa", Some((None, 21))),
            (b"$qGetTLSAddr:1f,20,7f00#a", None),
            (b"$qGetTLSAddr:1f,20", None),
            (b"$qGetTIBAddr:1#aa", None),
        ] {
            assert_eq!(ThreadLocalQuestion::take(bytes), expected);
        }
        assert_eq!(reply(Some(0x7f00)), b"$7f00#fd");
        assert_eq!(reply(None), b"$E01#a6");
    }
}
