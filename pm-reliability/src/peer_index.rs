//! Maps nodes to peers. A job may have a million nodes of which a process uses three. Therefore
//! pages of the map are allocated on demand.

const ENTRIES_PER_PAGE: usize = 1024;
const NO_PEER: u32 = u32::MAX;

pub(super) struct PeerIndex {
    pages: Vec<Option<Box<[u32; ENTRIES_PER_PAGE]>>>,
}

impl PeerIndex {
    pub(super) fn new(nodes: u32) -> PeerIndex {
        PeerIndex {
            pages: (0..(nodes as usize).div_ceil(ENTRIES_PER_PAGE)).map(|_| None).collect(),
        }
    }

    #[inline]
    pub(super) fn get(&self, node: u32) -> Option<u32> {
        let page = self.pages.get(node as usize / ENTRIES_PER_PAGE)?.as_ref()?;
        Some(page[node as usize % ENTRIES_PER_PAGE]).filter(|index| *index != NO_PEER)
    }

    pub(super) fn set(&mut self, node: u32, index: u32) {
        if let Some(page) = self.pages.get_mut(node as usize / ENTRIES_PER_PAGE) {
            page.get_or_insert_with(|| Box::new([NO_PEER; ENTRIES_PER_PAGE]))
                [node as usize % ENTRIES_PER_PAGE] = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_on_every_page_and_only_used_pages_have_memory() {
        let nodes = 2 * ENTRIES_PER_PAGE as u32 + 1;
        let mut index = PeerIndex::new(nodes);
        for (node, peer) in [(0, 7), (1023, 8), (nodes - 1, 9), (nodes + 5000, 10)] {
            index.set(node, peer);
        }
        let found = [0, 1, 1023, 1024, nodes - 1, nodes + 5000].map(|node| index.get(node));
        assert_eq!(found, [Some(7), None, Some(8), None, Some(9), None]);
        let pages: Vec<bool> = index.pages.iter().map(Option::is_some).collect();
        assert_eq!(pages, [true, false, true]);
    }
}
