//! Node to peer. A job may have a million nodes and talk with three: pages are made on demand.

const PAGE: usize = 1024;
const NONE: u32 = u32::MAX;

pub(super) struct Table {
    pages: Vec<Option<Box<[u32; PAGE]>>>,
}

impl Table {
    pub(super) fn new(nodes: u32) -> Table {
        Table { pages: (0..(nodes as usize).div_ceil(PAGE)).map(|_| None).collect() }
    }

    #[inline]
    pub(super) fn get(&self, node: u32) -> Option<u32> {
        let page = self.pages.get(node as usize / PAGE)?.as_ref()?;
        Some(page[node as usize % PAGE]).filter(|index| *index != NONE)
    }

    pub(super) fn set(&mut self, node: u32, index: u32) {
        if let Some(page) = self.pages.get_mut(node as usize / PAGE) {
            page.get_or_insert_with(|| Box::new([NONE; PAGE]))[node as usize % PAGE] = index;
        }
    }
}
