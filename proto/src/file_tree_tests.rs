use super::*;
use proptest::prelude::*;

fn directory(path: &str) -> TreeEntry {
    entry(path, TreeEntryKind::Directory { mode: 0o755 })
}

fn file(path: &str, size: u64) -> TreeEntry {
    entry(path, TreeEntryKind::File { mode: 0o644, size })
}

fn link(path: &str, target: &str) -> TreeEntry {
    entry(path, TreeEntryKind::Link { target: OsBytes(target.into()) })
}

fn entry(path: &str, kind: TreeEntryKind) -> TreeEntry {
    TreeEntry { path: OsBytes(path.into()), kind }
}

fn check(entries: &[TreeEntry]) -> Result<u64, TreeError> {
    FileTree { entries: entries.to_vec() }.check()
}

#[track_caller]
fn assert_refused(entries: &[TreeEntry], path: &str, reason: &str) {
    let text = check(entries).unwrap_err().to_string();
    assert!(text.starts_with(path) && text.contains(reason), "{text}");
}

#[test]
fn a_directory_is_decoded_unchanged_with_the_sum_of_its_files() {
    let entries = vec![
        directory("lib"),
        file("lib/a.so.1", 5),
        link("lib/a.so", "a.so.1"),
        directory("lib/deep"),
        link("lib/deep/up", "../../data/./x"),
        directory("data"),
        file("data/x", 7),
        link("later", "data/not/there/../yet"),
    ];
    let tree = FileTree { entries };
    let bytes = tree.encode().unwrap();
    let (prefix, list) = bytes.split_at(TREE_PREFIX);
    assert_eq!(FileTree::list_length(prefix.try_into().unwrap()), Ok(list.len()));
    assert_eq!(FileTree::decode(list, 12), Ok(tree));
    let sum = TreeError::Sum { expected: 12, found: 11 };
    assert_eq!(FileTree::decode(list, 11), Err(sum));
    assert_eq!(FileTree::decode(&[list, b"x"].concat(), 12), Err(TreeError::Malformed));
    assert_eq!(FileTree::list_length([0xff; 8]), Err(TreeError::ListLength(u64::MAX)));
}

#[test]
fn paths_outside_a_directory_are_refused() {
    for path in ["", "/", "/etc", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b"] {
        let entries = [directory("a"), file(path, 1)];
        assert_refused(&entries, path, "an invalid part");
    }
    assert_refused(&[file("a\0b", 1)], "a\\0b", "NUL");
    assert_refused(&[file(&"n".repeat(256), 1)], "nnn", "longer than 255");
    assert_refused(&[file(&"n/".repeat(513), 1)], "n/n", "longer than 1024");
    assert_refused(&[file("a", 1), file("a", 1)], "a: ", "twice");
    assert_refused(&[directory("a"), file("a/b", 1), link("a/b", "c")], "a/b: ", "twice");
    for parent in [vec![], vec![file("a", 1)], vec![link("a", "b"), directory("b")]] {
        assert_refused(&[parent, vec![file("a/b", 1)]].concat(), "a/b: ", "not in a directory");
    }
    // The directory must precede its entries.
    assert_refused(&[file("a/b", 1), directory("a")], "a/b: ", "not in a directory");
    let modes =
        [TreeEntryKind::Directory { mode: 0o1755 }, TreeEntryKind::File { mode: 0o4755, size: 1 }];
    for kind in modes {
        assert_refused(&[entry("s", kind)], "s: ", "permission bits");
    }
}

#[test]
fn links_that_lead_out_of_the_directory_are_refused() {
    let directories = [directory("a"), directory("a/b"), directory("c")];
    for target in ["/", "/etc/passwd", "..", "../../x", "b/../../../x", "none/../../../a"] {
        let entries = [&directories[..], &[link("a/l", target)]].concat();
        let result = check(&entries);
        let leads_out = !matches!(target, "..");
        assert_eq!(result.is_err(), leads_out, "{target}: {result:?}");
    }
    // If only names were compared, the second link would stay inside.
    let through = [&directories[..], &[link("c/l", "../a"), link("a/b/m", "../../c/l/../.")]];
    assert_eq!(check(&through.concat()), Ok(0));
    let through = [&directories[..], &[link("a/b/l", "../../c"), link("a/m", "b/l/../../x")]];
    assert_refused(&through.concat(), "a/m: ", "leads out");
    assert_refused(&[link("a", "b"), link("b", "a")], "a: ", "loop");
    assert_refused(&[link("a", "")], "a: ", "target");
    assert_refused(&[link("a", &"x".repeat(1025))], "a: ", "target");
}

#[test]
fn the_numbers_of_entries_and_bytes_have_bounds() {
    let files = |count: usize| -> Vec<_> { (0..count).map(|n| file(&n.to_string(), 1)).collect() };
    assert_eq!(check(&files(MAX_TREE_ENTRIES)), Ok(MAX_TREE_ENTRIES as u64));
    assert_eq!(check(&files(MAX_TREE_ENTRIES + 1)), Err(TreeError::TooManyEntries));
    assert_eq!(check(&[file("a", MAX_TREE_BYTES)]), Ok(MAX_TREE_BYTES));
    let too_many = Err(TreeError::TooManyBytes);
    assert_eq!(check(&[file("a", MAX_TREE_BYTES), file("b", 1)]), too_many);
    assert_eq!(check(&[file("a", u64::MAX), file("b", u64::MAX)]), too_many);
    // The targets of all links together have too many names.
    let links: Vec<_> =
        (0..MAX_TREE_ENTRIES).map(|n| link(&n.to_string(), &"./".repeat(500))).collect();
    assert_eq!(check(&links), Err(TreeError::TooManyNames));
}

#[test]
fn the_longest_list_is_encoded_and_a_longer_list_is_refused() {
    let encoded_len = |path_len: usize| {
        let tree = FileTree { entries: vec![directory(&"n".repeat(path_len))] };
        tree.encode().map(|bytes| bytes.len())
    };
    let short_path = MAX_TREE_LIST / 2;
    let other_bytes = encoded_len(short_path).unwrap() - TREE_PREFIX - short_path;
    let longest_path = MAX_TREE_LIST - other_bytes;
    let longest = encoded_len(longest_path).unwrap();
    assert_eq!(longest, TREE_PREFIX + MAX_TREE_LIST);
    assert_eq!(MAX_TREE_FILE, longest as u64 + MAX_TREE_BYTES);
    let too_long = Err(TreeError::ListLength(MAX_TREE_LIST as u64 + 1));
    assert_eq!(encoded_len(longest_path + 1), too_long);
}

#[test]
fn the_longest_names_paths_and_targets_are_accepted() {
    assert_eq!(check(&[file(&"n".repeat(MAX_TREE_NAME), 1)]), Ok(1));
    assert_eq!(check(&[link("l", &"x".repeat(MAX_TREE_PATH))]), Ok(0));
    // Five names and four slashes.
    let name = "n".repeat((MAX_TREE_PATH - 4) / 5);
    let paths: Vec<String> = (1..=5).map(|depth| vec![name.as_str(); depth].join("/")).collect();
    assert_eq!(paths[4].len(), MAX_TREE_PATH);
    let mut entries: Vec<_> = paths.iter().map(|path| directory(path)).collect();
    assert_eq!(check(&entries), Ok(0));
    entries.push(file(&format!("{}n", paths[4]), 1));
    assert_refused(&entries, "nnn", "longer than 1024");
}

#[test]
fn a_link_leads_to_a_path_of_bounded_length_through_at_most_40_links() {
    let name = "n".repeat(MAX_TREE_NAME);
    let folder = format!("{name}/{name}");
    let entries_for = |name_len: usize| {
        let target = format!("{}/.", "x".repeat(name_len));
        [directory(&name), directory(&folder), link(&format!("{folder}/l"), &target)]
    };
    let longest = MAX_TREE_PATH + MAX_TREE_NAME - folder.len() - "/".len();
    assert_eq!(check(&entries_for(longest)), Ok(0));
    assert_refused(&entries_for(longest + 1), "nnn", "a path that is too long");
    let chain = |count: usize| -> Vec<_> {
        (0..count).map(|n| link(&n.to_string(), &(n + 1).to_string())).collect()
    };
    assert_eq!(check(&chain(MAX_FOLLOWED_LINKS)), Ok(0));
    assert_refused(&chain(MAX_FOLLOWED_LINKS + 1), "0: ", "through more than 40 links");
}

/// Only a few names, so that paths coincide.
fn names() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c", "d"]);
    prop::collection::vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn targets() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c", "..", "..", "."]);
    prop::collection::vec(name, 1..6).prop_map(|names| names.join("/"))
}

fn entries() -> impl Strategy<Value = TreeEntry> {
    prop_oneof![
        3 => names().prop_map(|path| directory(&path)),
        1 => (names(), 0..9u64).prop_map(|(path, size)| file(&path, size)),
        2 => (names(), targets()).prop_map(|(path, target)| link(&path, &target)),
    ]
}

/// Creates a tree without checks, in the order of its list.
fn create(tree: &FileTree, folder: &std::path::Path) {
    use std::os::unix::ffi::OsStrExt;
    let to_path = |bytes: &OsBytes| std::ffi::OsStr::from_bytes(&bytes.0).to_owned();
    for entry in &tree.entries {
        let path = folder.join(to_path(&entry.path));
        match &entry.kind {
            TreeEntryKind::Directory { .. } => std::fs::create_dir(path),
            TreeEntryKind::File { size, .. } => std::fs::write(path, vec![b'x'; *size as usize]),
            TreeEntryKind::Link { target } => std::os::unix::fs::symlink(to_path(target), path),
        }
        .unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// An accepted tree can be created. If one of its links leads to an existing file, that file is
    /// in the directory. The file system is the reference.
    // Promise of `every_host_has_the_directory_and_it_is_removed_with_the_job`.
    #[test]
    fn accepted_paths_stay_in_their_directory(list in prop::collection::vec(entries(), 1..24)) {
        let mut tree = FileTree::default();
        for entry in list {
            tree.entries.push(entry);
            if tree.check().is_err() {
                tree.entries.pop();
            }
        }
        let scratch = std::env::temp_dir().join(format!("score-tree-{}", std::process::id()));
        let folder = scratch.join("x/y");
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        // Files that links out of the directory would reach.
        for name in ["a", "b", "c", "d", "x/a", "x/b", "x/c"] {
            std::fs::create_dir_all(scratch.join(name)).unwrap();
        }
        create(&tree, &folder);
        let outside: Vec<_> = tree.entries.iter().filter(|entry| {
            let path = folder.join(std::str::from_utf8(&entry.path.0).unwrap());
            std::fs::canonicalize(path).is_ok_and(|real| !real.starts_with(&folder))
        }).collect();
        std::fs::remove_dir_all(&scratch).unwrap();
        prop_assert!(outside.is_empty(), "{outside:?}");
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..64),
        length in 0..64u64,
        position in 0..64usize,
        value: u8,
    ) {
        let _ = FileTree::decode(&bytes, length);
        let tree = FileTree { entries: vec![directory("a"), file("a/b", 3), link("l", "a")] };
        bytes = tree.encode().unwrap().split_off(TREE_PREFIX);
        let position = position % bytes.len();
        bytes[position] = value;
        if let Ok(changed) = FileTree::decode(&bytes, length) {
            prop_assert_eq!(changed.check(), Ok(length));
        }
    }
}
