//! The kernel's query for the mapping at one address (PROCMAP_QUERY, Linux 6.11). Its cost does not
//! depend on the number of mappings at lower addresses. Layout and numbers are from linux/fs.h.

// UNSAFETY: a system call without a safe wrapper.
#![expect(unsafe_code)]

use super::mapping::Mapping;
use super::page_range::PageRange;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    kind: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    /// Lengths of the buffers for a name and for a build id: 0.
    name_len: u32,
    id_len: u32,
    name_addr: u64,
    id_addr: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `_IOWR('f', 17, struct procmap_query)`.
const QUERY: libc::Ioctl =
    ((3 << 30) | ((size_of::<Query>() as u64) << 16) | ((b'f' as u64) << 8) | 17) as libc::Ioctl;

const SHARED: u64 = 8;

/// The mapping that contains `address`, from an open `/proc/self/maps`. None: the address is not
/// mapped.
///
/// # Errors
/// ENOTTY: the kernel has no PROCMAP_QUERY (it is older than Linux 6.11).
pub(super) fn mapping_at(maps: &File, address: usize) -> io::Result<Option<Mapping>> {
    let size = size_of::<Query>() as u64;
    let mut query = Query { size, address: address as u64, ..Query::default() };
    // SAFETY: reads and writes this structure, which has `size` bytes; the buffers for the name and
    // the build id have length 0.
    if unsafe { libc::ioctl(maps.as_raw_fd(), QUERY, &raw mut query) } < 0 {
        let error = io::Error::last_os_error();
        let is_unmapped = error.raw_os_error() == Some(libc::ENOENT);
        return if is_unmapped { Ok(None) } else { Err(error) };
    }
    let span = PageRange::new(query.start as usize, query.end as usize);
    let anonymous = query.kind & SHARED == 0 && query.inode == 0;
    Ok(span.map(|span| Mapping { span, anonymous }))
}

#[cfg(test)]
mod tests {
    use super::super::PAGE;
    use super::super::maps::{via_proc_maps, via_procmap_query};
    use super::*;

    /// Five consecutive pages: a private writable one, a private read-only one, none, a private
    /// one, a shared one. They are at addresses where the kernel maps no other memory.
    fn map_five_pages() -> usize {
        let map = |addr: usize, pages: usize, prot: i32, flags: i32| {
            let (hint, flags) = (addr as *mut libc::c_void, flags | libc::MAP_ANONYMOUS);
            // SAFETY: new memory, or in place of pages that only this test uses.
            let mapped = unsafe { libc::mmap(hint, pages * PAGE, prot, flags, -1, 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            mapped as usize
        };
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let first = map(1 << 45, 5, read_write, libc::MAP_PRIVATE);
        let fixed = libc::MAP_FIXED;
        map(first + PAGE, 1, libc::PROT_READ, fixed | libc::MAP_PRIVATE);
        map(first + 4 * PAGE, 1, read_write, fixed | libc::MAP_SHARED);
        // SAFETY: one of these pages, which is not used.
        unsafe { libc::munmap((first + 2 * PAGE) as *mut libc::c_void, PAGE) };
        first
    }

    #[test]
    fn procmap_query_agrees_with_proc_maps() {
        let maps = || File::open("/proc/self/maps").unwrap();
        if let Err(error) = mapping_at(&maps(), 4096) {
            println!("PROCMAP_QUERY is not tested: {error}");
            return;
        }
        let (heap, local) = (Box::new([7u8; 64]), [7u8; 64]);
        let pages = map_five_pages();
        let page_addr = |page: usize| pages + page * PAGE;
        for (name, address, len, refused) in [
            ("heap", heap.as_ptr().addr(), 64, None),
            ("stack", local.as_ptr().addr(), 64, None),
            ("code", mapping_at as *const () as usize, 1, Some("file")),
            ("shared memory", page_addr(4), 64, Some("shared")),
            ("nothing", 4096, 64, Some("not mapped")),
            ("nothing, then something", page_addr(2), 2 * PAGE, Some("not mapped")),
            ("something, then nothing", page_addr(1), 2 * PAGE, Some("not mapped")),
            ("one mapping", page_addr(0) + 8, 8, None),
            ("two that touch", page_addr(0) + 8, PAGE, None),
            ("one and a shared one", page_addr(3) + 8, PAGE, Some("shared")),
            (
                "to the end of all addresses",
                page_addr(0),
                usize::MAX - page_addr(5),
                Some("not mapped"),
            ),
        ] {
            let span = PageRange::pages(address, len).unwrap();
            let answer = via_procmap_query(&maps(), span).unwrap();
            match refused {
                None => assert!(answer.is_ok_and(|range| range.contains(span)), "{name}"),
                Some(part) => assert!(answer.unwrap_err().contains(part), "{name}: {answer:?}"),
            }
            // Other threads map and unmap neighbouring memory.
            let answers_agree =
                || via_procmap_query(&maps(), span).unwrap() == via_proc_maps(maps(), span);
            assert!((0..100).any(|_| answers_agree()), "{name}");
        }
    }
}
