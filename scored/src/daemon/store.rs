//! Programs by user and content: fetched from above once, kept for the daemon's life as far as
//! there is room, and handed on to whoever asks while they still come. What one user has brought
//! is for jobs of that user alone: nobody gets another's program by its hash, nor learns that it
//! is here, nor can spoil it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{geteuid, linkat};
use score_proto::message::{CHUNK, Content, ContentHash};

/// Bytes that are under way without having been asked for again.
const AHEAD: u64 = 1024 * 1024;
/// The largest program that travels.
pub const LARGEST: u64 = 4 << 30;
/// The largest program that is read from a file in one go: nothing else happens meanwhile.
const AT_ONCE: u64 = 64 << 20;
/// What is kept of programs that no job uses.
const KEPT: u64 = 256 << 20;

/// Somebody below who asks for a piece: a place of a job here, and the source there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker<P> {
    /// The place.
    pub post: P,
    /// The source.
    pub source: usize,
}

/// A wish that is to be sent up: so many bytes of this, from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Which program.
    pub hash: ContentHash,
    /// From here.
    pub offset: u64,
    /// So many.
    pub length: u64,
}

/// A piece for somebody who has asked.
#[derive(Debug)]
pub struct Piece<P> {
    /// Who.
    pub to: Asker<P>,
    /// Of which program.
    pub hash: ContentHash,
    /// Where it begins.
    pub offset: u64,
    /// The piece; none: there will be no more.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Coming,
    Whole,
    /// It cannot be had, or is not what it was said to be.
    Broken,
}

/// Whose jobs: a uid where there are several users.
type Whose = Option<u32>;

#[derive(Debug)]
struct Entry<P> {
    content: Content,
    file: File,
    state: State,
    have: u64,
    asked: u64,
    hasher: blake3::Hasher,
    wants: Vec<(Asker<P>, u64, u64)>,
    /// Whether the file is another virtual host's, on the disk of both.
    lent: bool,
    /// The job that it is fetched for, over whose place it comes.
    job: u32,
    jobs: HashSet<u32>,
}

/// How a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All of it is here.
    Whole,
    /// It is on its way.
    Coming,
    /// It cannot be had.
    Broken,
}

/// All programs here.
#[derive(Debug)]
pub struct Store<P> {
    entries: HashMap<(Whose, ContentHash), Entry<P>>,
    /// Whose the jobs are that need something.
    jobs: HashMap<u32, Whose>,
    /// Who asks for what nobody has heard of.
    unknown: Vec<(Asker<P>, Wish)>,
}

impl<P> Default for Store<P> {
    fn default() -> Self {
        Self { entries: HashMap::new(), jobs: HashMap::new(), unknown: Vec::new() }
    }
}

impl<P: Copy + PartialEq> Store<P> {
    /// A job of this user needs a program: what is to be asked for, if anything.
    ///
    /// # Errors
    /// As memfd_create(2); EFBIG when all programs of the user together are too large.
    pub fn need(&mut self, content: Content, job: u32, whose: Whose) -> io::Result<Option<Wish>> {
        self.jobs.insert(job, whose);
        let key = (whose, content.hash);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.jobs.insert(job);
            return Ok(None);
        }
        let own = self.entries.iter().filter(|((one, _), _)| *one == whose);
        let used: u64 = own.map(|(_, entry)| entry.content.size).sum();
        if used.saturating_add(content.size) > LARGEST {
            self.forget_unused();
        }
        let own = self.entries.iter().filter(|((one, _), _)| *one == whose);
        let used: u64 = own.map(|(_, entry)| entry.content.size).sum();
        if used.saturating_add(content.size) > LARGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut entry = Entry::new(content)?;
        entry.job = job;
        entry.jobs.insert(job);
        let entry = self.entries.entry(key).or_insert(entry);
        entry.settle();
        Ok(entry.wish())
    }

    /// Takes a program of the user who has started this server from a file on this host, if it is
    /// there as it was said to be; else it has to be asked for.
    ///
    /// # Errors
    /// As open(2), read(2), memfd_create(2).
    pub fn take(&mut self, content: Content, from: &Path) -> io::Result<()> {
        let key = (None, content.hash);
        if content.size > AT_ONCE || self.entries.contains_key(&key) {
            return Ok(());
        }
        let mut source = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(from)?;
        if !source.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut entry = Entry::new(content)?;
        let mut bytes = vec![0; 1 << 18];
        while entry.have <= content.size {
            let count = source.read(&mut bytes)?;
            if count == 0 {
                break;
            }
            entry.file.write_all_at(&bytes[..count], entry.have)?;
            entry.hasher.update(&bytes[..count]);
            entry.have += count as u64;
        }
        entry.settle();
        if entry.state == State::Whole {
            self.entries.insert(key, entry);
        }
        Ok(())
    }

    fn key(&self, job: u32, hash: &ContentHash) -> Option<(Whose, ContentHash)> {
        Some((*self.jobs.get(&job)?, *hash))
    }

    /// How it stands with a program of a job.
    pub fn find(&self, job: u32, hash: &ContentHash) -> Option<Found> {
        self.entries.get(&self.key(job, hash)?).map(|entry| match entry.state {
            State::Whole => Found::Whole,
            State::Coming => Found::Coming,
            State::Broken => Found::Broken,
        })
    }

    /// Somebody below asks for a job. It is answered by [`Store::pieces`], now and as more comes.
    pub fn ask(&mut self, job: u32, from: Asker<P>, wish: Wish) {
        let key = self.key(job, &wish.hash);
        let Some(entry) = key.and_then(|key| self.entries.get_mut(&key)) else {
            self.unknown.push((from, wish));
            return;
        };
        let end = wish.offset.saturating_add(wish.length.min(2 * AHEAD));
        entry.wants.push((from, wish.offset, end));
    }

    /// A piece has come; what is to be asked for next.
    pub fn push(
        &mut self,
        job: u32,
        hash: &ContentHash,
        offset: u64,
        bytes: &[u8],
    ) -> Option<Wish> {
        let key = self.key(job, hash)?;
        let entry = self.entries.get_mut(&key)?;
        if entry.state != State::Coming || entry.job != job || offset < entry.have {
            return None;
        }
        let after = entry.have + bytes.len() as u64;
        let fits = offset == entry.have && !bytes.is_empty() && after <= entry.content.size;
        if !fits || entry.file.write_all_at(bytes, offset).is_err() {
            entry.state = State::Broken;
            return None;
        }
        entry.hasher.update(bytes);
        entry.have = after;
        entry.settle();
        entry.wish()
    }

    /// Who was asked lends a file that has it. The hash is not taken again: the lender has done so,
    /// and the file is its own until the job runs.
    pub fn lend(&mut self, job: u32, hash: &ContentHash, file: io::Result<File>) {
        let key = self.key(job, hash);
        let Some(entry) = key.and_then(|key| self.entries.get_mut(&key)) else { return };
        if entry.state != State::Coming || entry.job != job || entry.have > 0 {
            return;
        }
        entry.state = State::Broken;
        if let Ok(file) = file
            && let Ok(about) = file.metadata()
            && about.is_file()
            && about.uid() == geteuid().as_raw()
            && about.len() == entry.content.size
        {
            (entry.state, entry.have) = (State::Whole, entry.content.size);
            (entry.file, entry.lent) = (file, true);
        }
    }

    /// What can be handed on now.
    pub fn pieces(&mut self) -> Vec<Piece<P>> {
        let none = |(to, wish): (Asker<P>, Wish)| Piece {
            to,
            hash: wish.hash,
            offset: wish.offset,
            bytes: Vec::new(),
        };
        let mut pieces: Vec<_> = self.unknown.drain(..).map(none).collect();
        for ((_, hash), entry) in &mut self.entries {
            if !entry.wants.is_empty() {
                entry.hand_on(hash, &mut pieces);
            }
        }
        pieces
    }

    /// Puts a program of a job into a file that nobody has yet. One that was lent gets another name
    /// only, where the disk allows that; every other is copied.
    ///
    /// # Errors
    /// As open(2), write(2); ENOENT when it is not here.
    pub fn put(&self, job: u32, hash: &ContentHash, to: &Path) -> io::Result<()> {
        let entry = self.key(job, hash).and_then(|key| self.entries.get(&key));
        let whole = entry.filter(|entry| entry.state == State::Whole);
        let entry = whole.ok_or(io::ErrorKind::NotFound)?;
        let open = format!("/proc/self/fd/{}", entry.file.as_raw_fd());
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        if entry.lent && linkat(AT_FDCWD, open.as_str(), AT_FDCWD, to, follow).is_ok() {
            return Ok(());
        }
        let mut target = File::options().write(true).create_new(true).mode(0o700).open(to)?;
        let mut bytes = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < entry.have {
            let count = bytes.len().min((entry.have - offset) as usize);
            entry.file.read_exact_at(&mut bytes[..count], offset)?;
            target.write_all(&bytes[..count])?;
            offset += count as u64;
        }
        Ok(())
    }

    /// A job is over: what only it was waiting for is forgotten, and so is what is too much. What
    /// came by way of it and is wanted by others has to be asked for by one of those.
    pub fn release(&mut self, job: u32) -> Vec<(u32, Wish)> {
        self.jobs.remove(&job);
        let mut wishes = Vec::new();
        self.entries.retain(|_, entry| {
            entry.jobs.remove(&job);
            if entry.state == State::Whole || entry.job != job {
                return true;
            }
            let Some(other) = entry.jobs.iter().next().filter(|_| entry.state == State::Coming)
            else {
                return false;
            };
            (entry.job, entry.asked) = (*other, entry.have);
            wishes.extend(entry.wish().map(|wish| (entry.job, wish)));
            true
        });
        let idle = |entry: &Entry<P>| entry.jobs.is_empty();
        // Whoever lent it removes it, and a job may have written to it.
        self.entries.retain(|_, entry| !(entry.lent && idle(entry)));
        let size: u64 = self.entries.values().filter(|one| idle(one)).map(|one| one.have).sum();
        if size > KEPT {
            self.forget_unused();
        }
        wishes
    }

    fn forget_unused(&mut self) {
        self.entries.retain(|_, entry| !entry.jobs.is_empty());
    }
}

impl<P: Copy> Entry<P> {
    fn new(content: Content) -> io::Result<Self> {
        Ok(Self {
            content,
            file: File::from(memfd_create(c"score-program", MFdFlags::MFD_CLOEXEC)?),
            state: State::Coming,
            have: 0,
            asked: 0,
            hasher: blake3::Hasher::new(),
            wants: Vec::new(),
            lent: false,
            job: 0,
            jobs: HashSet::new(),
        })
    }

    fn settle(&mut self) {
        if self.have == self.content.size && self.state == State::Coming {
            let right = *self.hasher.finalize().as_bytes() == self.content.hash;
            self.state = if right { State::Whole } else { State::Broken };
        }
    }

    fn wish(&mut self) -> Option<Wish> {
        let until = (self.have + AHEAD).min(self.content.size);
        let is_due = self.asked < self.content.size && self.asked - self.have <= AHEAD / 2;
        if self.state != State::Coming || !is_due {
            return None;
        }
        let wish = Wish { hash: self.content.hash, offset: self.asked, length: until - self.asked };
        self.asked = until;
        Some(wish)
    }

    fn hand_on(&mut self, hash: &ContentHash, pieces: &mut Vec<Piece<P>>) {
        let (have, broken) = (self.have, self.state == State::Broken);
        let file = &self.file;
        self.wants.retain_mut(|(to, offset, end)| {
            while *offset < *end {
                let count = (have.min(*end).saturating_sub(*offset)).min(CHUNK as u64);
                if count == 0 {
                    break;
                }
                let mut bytes = vec![0; count as usize];
                if file.read_exact_at(&mut bytes, *offset).is_err() {
                    bytes.clear();
                }
                pieces.push(Piece { to: *to, hash: *hash, offset: *offset, bytes });
                *offset += count;
            }
            if broken && *offset < *end {
                pieces.push(Piece { to: *to, hash: *hash, offset: *offset, bytes: Vec::new() });
                return false;
            }
            *offset < *end
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn content(bytes: &[u8]) -> Content {
        Content { hash: *blake3::hash(bytes).as_bytes(), size: bytes.len() as u64 }
    }

    /// Carries wishes from one store to the program itself until it is there.
    fn fetch(store: &mut Store<u32>, content: Content, program: &[u8]) {
        let mut wishes: VecDeque<Wish> =
            store.need(content, 1, None).unwrap().into_iter().collect();
        while let Some(Wish { hash, offset, length }) = wishes.pop_front() {
            let piece = &program[offset as usize..(offset + length) as usize];
            for (at, chunk) in piece.chunks(CHUNK).enumerate() {
                wishes.extend(store.push(1, &hash, offset + (at * CHUNK) as u64, chunk));
            }
        }
    }

    #[test]
    fn a_program_comes_once_in_order_and_is_checked() {
        let program: Vec<u8> = (0..5_000_000u32).map(|number| ((number * 31) >> 3) as u8).collect();
        let content = content(&program);
        let mut store = Store::default();
        fetch(&mut store, content, &program);
        assert_eq!(store.find(1, &content.hash), Some(Found::Whole));
        assert_eq!(store.need(content, 2, None).unwrap(), None);
        let folder = std::env::temp_dir().join(format!("score-store-{}", std::process::id()));
        store.put(1, &content.hash, &folder).unwrap();
        assert_eq!(std::fs::read(&folder).unwrap(), program);
        assert!(store.put(1, &content.hash, &folder).is_err());
        std::fs::remove_file(&folder).unwrap();
    }

    #[test]
    fn who_asks_early_gets_the_pieces_as_they_come() {
        let program = vec![7; 300_000];
        let content = content(&program);
        let mut store = Store::default();
        let wish = store.need(content, 1, None).unwrap().unwrap();
        let to = Asker { post: 1u32, source: 3 };
        store.ask(1, to, wish);
        assert!(store.pieces().is_empty());
        let mut got = Vec::new();
        for (at, chunk) in program.chunks(CHUNK).enumerate() {
            store.push(1, &content.hash, (at * CHUNK) as u64, chunk);
            for piece in store.pieces() {
                assert_eq!((piece.to, piece.offset), (to, got.len() as u64));
                got.extend(piece.bytes);
            }
        }
        assert_eq!(got, program);
        store.ask(1, to, Wish { hash: [0; 32], offset: 9, length: 1 });
        assert!(store.pieces()[0].bytes.is_empty());
    }

    #[test]
    fn a_lent_program_gets_another_name_and_is_copied_when_the_first_is_gone() {
        let program = vec![7; 300_000];
        let content = content(&program);
        let place = std::env::temp_dir().join(format!("score-lent-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let names = ["first", "second", "third"].map(|name| place.join(name));
        std::fs::write(&names[0], &program).unwrap();
        let mut store = Store::<u32>::default();
        store.need(content, 1, None).unwrap().unwrap();
        store.lend(2, &content.hash, File::open(&names[0]));
        assert_eq!(store.find(1, &content.hash), Some(Found::Coming));
        store.lend(1, &content.hash, File::open(&names[0]));
        assert_eq!(store.find(1, &content.hash), Some(Found::Whole));
        store.put(1, &content.hash, &names[1]).unwrap();
        let number = |name: &Path| std::fs::metadata(name).unwrap().ino();
        assert_eq!(number(&names[0]), number(&names[1]));
        std::fs::remove_file(&names[0]).unwrap();
        std::fs::remove_file(&names[1]).unwrap();
        store.put(1, &content.hash, &names[2]).unwrap();
        assert_eq!(std::fs::read(&names[2]).unwrap(), program);
        store.release(1);
        assert_eq!(store.find(1, &content.hash), None);
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn a_program_is_taken_from_a_file_that_holds_it_and_nothing_else() {
        let program = vec![7; 600_000];
        let own = std::env::temp_dir().join(format!("score-own-{}", std::process::id()));
        std::fs::write(&own, &program).unwrap();
        let right = content(&program);
        let mut store = Store::<u32>::default();
        store.take(Content { size: right.size - 1, ..right }, &own).unwrap();
        store.take(Content { hash: [0; 32], ..right }, &own).unwrap();
        store.take(right, Path::new("/dev/zero")).unwrap_err();
        assert!(store.need(right, 2, None).unwrap().is_some());
        store.release(2);
        store.take(right, &own).unwrap();
        assert_eq!(store.need(right, 1, None).unwrap(), None);
        assert_eq!(store.find(1, &right.hash), Some(Found::Whole));
        std::fs::remove_file(&own).unwrap();
    }

    #[test]
    fn a_file_that_is_not_the_program_is_not_borrowed() {
        let content = content(&[7; 1000]);
        let folder = File::open(std::env::temp_dir());
        let nothing = File::open("/nowhere/at/all");
        for file in [folder, nothing, File::open("/proc/self/exe")] {
            let mut store = Store::<u32>::default();
            store.need(content, 1, None).unwrap().unwrap();
            store.lend(1, &content.hash, file);
            assert_eq!(store.find(1, &content.hash), Some(Found::Broken));
        }
    }

    #[test]
    fn what_is_not_what_it_was_said_to_be_is_broken_for_everybody() {
        let program = vec![7; 1000];
        let content = content(&program);
        for wrong in [vec![8; 1000], vec![7; 1001], vec![]] {
            let mut store = Store::default();
            let wish = store.need(content, 1, None).unwrap().unwrap();
            store.ask(1, Asker { post: 1u32, source: 1 }, Wish { length: 5000, ..wish });
            store.push(2, &content.hash, 0, &program);
            store.push(1, &content.hash, 0, &wrong);
            assert_eq!(store.find(1, &content.hash), Some(Found::Broken));
            assert!(store.pieces().iter().any(|piece| piece.bytes.is_empty()));
            store.release(1);
            assert_eq!(store.find(1, &content.hash), None);
        }
    }

    #[test]
    fn nobody_gets_or_spoils_the_program_of_another_user() {
        let program = vec![7; 1000];
        let content = content(&program);
        let mut store = Store::<u32>::default();
        store.need(content, 1, Some(1000)).unwrap();
        store.push(1, &content.hash, 0, &program);
        assert_eq!(store.find(1, &content.hash), Some(Found::Whole));
        // It is asked for as if it had never been here.
        assert!(store.need(content, 2, Some(1001)).unwrap().is_some());
        assert_eq!(store.find(2, &content.hash), Some(Found::Coming));
        let to = std::env::temp_dir().join(format!("score-theft-{}", std::process::id()));
        assert!(store.put(2, &content.hash, &to).is_err());
        store.push(2, &content.hash, 0, &[8; 1000]);
        assert_eq!(store.find(2, &content.hash), Some(Found::Broken));
        assert_eq!(store.find(1, &content.hash), Some(Found::Whole));
        // Who names a job that is not here gets nothing, either.
        store.ask(
            3,
            Asker { post: 3, source: 1 },
            Wish { hash: content.hash, offset: 0, length: 9 },
        );
        assert!(store.pieces()[0].bytes.is_empty());
        assert_eq!(store.need(content, 4, Some(1000)).unwrap(), None);
    }

    #[test]
    fn when_the_job_that_fetches_is_over_another_one_goes_on_where_it_was() {
        let program: Vec<u8> = (0..200_000u32).map(|number| (number >> 5) as u8).collect();
        let content = content(&program);
        let mut store = Store::<u32>::default();
        store.need(content, 1, None).unwrap();
        assert_eq!(store.need(content, 2, None).unwrap(), None);
        store.push(1, &content.hash, 0, &program[..CHUNK]);
        let wishes = store.release(1);
        let offset = CHUNK as u64;
        let wish = Wish { hash: content.hash, offset, length: program.len() as u64 - offset };
        assert_eq!(wishes, [(2, wish)]);
        assert_eq!(store.push(1, &content.hash, offset, &program[CHUNK..]), None);
        assert_eq!(store.find(2, &content.hash), Some(Found::Coming));
        store.push(2, &content.hash, offset, &program[CHUNK..]);
        assert_eq!(store.find(2, &content.hash), Some(Found::Whole));
        assert_eq!(store.release(2), []);
    }

    #[test]
    fn the_programs_of_one_user_are_bounded() {
        let mut store = Store::<u32>::default();
        let large = |byte| Content { hash: [byte; 32], size: LARGEST / 2 };
        assert!(store.need(large(1), 1, Some(1000)).is_ok());
        assert!(store.need(large(2), 1, Some(1000)).is_ok());
        assert!(store.need(large(3), 2, Some(1000)).is_err());
        assert!(store.need(large(3), 3, Some(1001)).is_ok());
        store.release(1);
        assert!(store.need(large(3), 2, Some(1000)).is_ok());
    }
}
