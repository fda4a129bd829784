use super::*;
use score_proto::message::OsBytes;
use score_proto::tool_start::TOOL_FILES_DIR;
use std::os::unix::fs::{MetadataExt, symlink};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("score-files-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("job")).unwrap();
        Self(path)
    }

    fn job(&self) -> PathBuf {
        self.0.join("job")
    }

    /// The directory of the unpacked files.
    fn folder(&self) -> PathBuf {
        self.job().join(TOOL_FILES_DIR)
    }

    /// An archive of these entries, which may be invalid.
    fn begin(&self, entries: &[TreeEntry], contents: &[u8]) -> Result<Unpacker, String> {
        let mut bytes = FileTree { entries: entries.to_vec() }.encode().unwrap();
        bytes.extend_from_slice(contents);
        let path = self.0.join("archive");
        std::fs::write(&path, &bytes).unwrap();
        Unpacker::begin(File::open(path).unwrap(), bytes.len() as u64, self.folder())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn entry(path: &str, kind: TreeEntryKind) -> TreeEntry {
    TreeEntry { path: OsBytes(path.into()), kind }
}

fn directory(path: &str, mode: u16) -> TreeEntry {
    entry(path, TreeEntryKind::Directory { mode })
}

fn file(path: &str, mode: u16, size: u64) -> TreeEntry {
    entry(path, TreeEntryKind::File { mode, size })
}

fn link(path: &str, target: &str) -> TreeEntry {
    entry(path, TreeEntryKind::Link { target: OsBytes(target.into()) })
}

/// Unpacks in steps of `budget` bytes. Returns the number of steps.
fn unpack(unpacker: &mut Unpacker, budget: usize) -> Result<u32, String> {
    for steps in 1.. {
        if unpacker.pump(budget)? {
            return Ok(steps);
        }
    }
    unreachable!("each step goes on")
}

#[test]
fn files_modes_and_links_are_those_of_the_list() {
    let scratch = Scratch::new("all");
    let contents: Vec<u8> = (0..3_000_000u32).map(|number| (number >> 3) as u8).collect();
    let entries = [
        directory("closed", 0o500),
        file("closed/run", 0o755, 10),
        directory("closed/deep", 0o751),
        file("closed/deep/large", 0o440, 2_999_990),
        link("closed/deep/up", "../run"),
        file("empty", 0o600, 0),
        link("missing", "closed/none"),
    ];
    let mut unpacker = scratch.begin(&entries, &contents).unwrap();
    assert!(unpack(&mut unpacker, 1 << 20).unwrap() >= 3);
    let path = |name: &str| scratch.folder().join(name);
    let mode = |name: &str| std::fs::symlink_metadata(path(name)).unwrap().mode() & 0o7777;
    // Every directory has the mode bits that let its user remove its entries.
    assert_eq!([mode("closed"), mode("closed/deep")], [0o700, 0o751]);
    assert_eq!([mode("closed/run"), mode("closed/deep/large")], [0o755, 0o440]);
    assert_eq!(std::fs::read(path("closed/deep/up")).unwrap(), &contents[..10]);
    assert_eq!(std::fs::read(path("closed/deep/large")).unwrap(), &contents[10..]);
    assert_eq!(std::fs::read(path("empty")).unwrap(), b"");
    assert_eq!(std::fs::read_link(path("missing")).unwrap(), Path::new("closed/none"));
}

// Promise of `every_host_has_the_directory_and_it_is_removed_with_the_job`.
#[test]
fn a_hostile_list_creates_no_file() {
    let scratch = Scratch::new("hostile");
    for (entries, contents, reason) in [
        (vec![file("../out", 0o644, 1)], "x", "../out: its path"),
        (vec![file("/tmp/score-out", 0o644, 1)], "x", "its path"),
        (vec![link("l", ".."), file("l/out", 0o644, 1)], "x", "l/out: it is not in a directory"),
        (vec![directory("d", 0o755), link("d/l", "../../job")], "", "leads out"),
        (vec![file("a", 0o644, 1), file("a", 0o644, 1)], "xx", "a: it is listed twice"),
        (vec![file("a", 0o644, 2)], "x", "have 2 bytes according to its list, but 1 bytes"),
        (vec![file("a", 0o644, 1)], "xx", "have 1 bytes according to its list, but 2 bytes"),
        (vec![file("a", 0o4755, 1)], "x", "permission bits"),
    ] {
        let error = scratch.begin(&entries, contents.as_bytes()).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(std::fs::read_dir(scratch.job()).unwrap().count(), 0);
    for bytes in [&[][..], &[1], &[0xff; 8], &[9, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let path = scratch.0.join("archive");
        std::fs::write(&path, bytes).unwrap();
        let archive = File::open(path).unwrap();
        assert!(Unpacker::begin(archive, bytes.len() as u64, scratch.folder()).is_err());
    }
}

// Promise of `every_host_has_the_directory_and_it_is_removed_with_the_job`.
#[test]
fn directories_that_were_exchanged_meanwhile_are_not_followed() {
    let scratch = Scratch::new("exchanged");
    std::fs::create_dir(scratch.0.join("out")).unwrap();
    let entries = [directory("d", 0o755), file("big", 0o644, 8), file("d/x", 0o644, 0)];
    let mut unpacker = scratch.begin(&entries, b"12345678").unwrap();
    assert_eq!(unpacker.pump(0), Ok(false));
    let folder = scratch.folder();
    std::fs::remove_dir(folder.join("d")).unwrap();
    symlink("../../out", folder.join("d")).unwrap();
    let error = unpack(&mut unpacker, 4).unwrap_err();
    assert!(error.contains(".tool-files/d/x: "), "{error}");
    assert_eq!(std::fs::read_dir(scratch.0.join("out")).unwrap().count(), 0);
    // The target directory itself must not be a link either.
    std::fs::rename(&folder, scratch.0.join("other")).unwrap();
    symlink(scratch.0.join("out"), &folder).unwrap();
    assert!(scratch.begin(&[file("a", 0o644, 1)], b"x").unwrap_err().contains("exists"));
}

#[test]
fn too_little_disk_space_is_refused_with_both_amounts() {
    let job = std::env::temp_dir();
    let check = |size, limit: Option<(u64, u64)>| {
        let limit = limit.map(|(bytes, used)| DiskLimit { bytes, used });
        NeededRoom { size, own_copies: 1, copies: 1 }.check(&job, limit)
    };
    assert_eq!(check(1, None), Ok(()));
    let error = check(1 << 60, None).unwrap_err();
    assert!(error.starts_with("2199023255552 MB are needed"), "{error}");
    assert!(error.contains(&format!("in {}, where ", job.display())), "{error}");
    let error = check(3 << 20, Some((5 << 20, 0))).unwrap_err();
    assert_eq!(error, "6 MB are needed temporarily, and the job has a disklimit of 5 MB");
    assert_eq!(check(3 << 20, Some((6 << 20, 0))), Ok(()));
    // A running job uses a part of its limit.
    let error = check(3 << 20, Some((6 << 20, 1))).unwrap_err();
    assert!(error.ends_with("a disklimit of 6 MB, of which it uses 1 MB"), "{error}");
    assert_eq!(check(3 << 20, Some((9 << 20, 3 << 20))), Ok(()));
    // A host that only passes the archive on needs no room for its files.
    let relay = NeededRoom { size: 3 << 20, own_copies: 0, copies: 0 };
    assert_eq!(relay.check(&job, Some(DiskLimit { bytes: 3 << 20, used: 0 })), Ok(()));
}
