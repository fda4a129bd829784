//! Programs on their way through a daemon: from scrun or the host above into the store, and on to
//! the hosts below.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use score_proto::message::{ContentHash, JobSpec, Up};
use score_proto::order::{Begin, Order, Report};

use super::Daemon;
use super::jobs::Post;
use super::member::{Above, Member};
use super::store::{Asker, Found, LARGEST, Wish};
use crate::job::staging;

impl Daemon {
    /// Takes the programs of a job from the files of the user who has started this server, as far
    /// as they are there still; the others are asked for.
    pub fn take_own(&mut self, spec: &JobSpec) {
        if self.service.is_some() {
            // It must not open what a user names.
            return;
        }
        let directory = Path::new(OsStr::from_bytes(&spec.directory.0));
        for element in spec.stages.iter().flat_map(|stage| &stage.elements) {
            if let Some(content) = element.content {
                let path = directory.join(OsStr::from_bytes(&element.path.0));
                // Who is asked for it says what is wrong with it.
                let _ = self.store.take(content, &path);
            }
        }
    }

    /// Sees to it that the programs of a job come here.
    pub fn fetch(&mut self, number: u32, begin: &Begin) -> Result<(), String> {
        if self.leads.contains_key(&number) {
            self.take_own(&begin.spec);
        }
        let whose = begin.owner.as_ref().map(|owner| owner.uid);
        for (content, place) in staging::files(&begin.spec) {
            if content.size > LARGEST {
                return Err(format!(
                    "{} has {} bytes: at most {LARGEST} travel to other hosts",
                    place.display(),
                    content.size
                ));
            }
            let wish = self.store.need(content, number, whose);
            let wish = wish.map_err(|error| {
                format!("{}: no room for the job's programs: {error}", place.display())
            })?;
            wish.into_iter().for_each(|wish| self.wish(number, wish));
        }
        Ok(())
    }

    /// Asks for more of a program: scrun, or the host above.
    pub fn wish(&mut self, number: u32, Wish { hash, offset, length }: Wish) {
        if let Some(lead) = self.leads.get(&number) {
            return self.tell(number, lead.lane, &Up::Want { hash, offset, length });
        }
        let member = self.members.get(&(number, false));
        if let Some((Above::Peer(link), life)) = member.map(|member| (member.above, member.life()))
        {
            self.send_report(link, (number, life), &Report::Want { hash, offset, length });
        }
    }

    /// A piece has come from there.
    pub fn content_came(&mut self, number: u32, hash: &ContentHash, offset: u64, bytes: &[u8]) {
        if let Some(wish) = self.store.push(number, hash, offset, bytes) {
            self.wish(number, wish);
        }
        self.hand_on();
    }

    /// The virtual host above lends a file.
    pub fn content_lent(&mut self, number: u32, hash: &ContentHash, path: &Path) {
        // No link, and nothing that waits for its other end.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(path);
        self.store.lend(number, hash, file);
        if let Some(member) = self.members.get_mut(&(number, false)) {
            member.can_lend(*hash, path);
        }
        self.hand_on();
    }

    /// A host below asks for a piece.
    pub fn content_wanted(&mut self, post: Post, source: usize, wish: Wish) {
        match self.members.get_mut(&post).filter(|member| member.shares_disk) {
            Some(member) => member.borrowers.push((source, wish.hash)),
            None => self.store.ask(post.0, Asker { post, source }, wish),
        }
        self.hand_on();
    }

    fn hand_on(&mut self) {
        for piece in self.store.pieces() {
            let Asker { post, source } = piece.to;
            let (hash, offset, bytes) = (piece.hash, piece.offset, piece.bytes);
            self.send_down(post, source, &Order::Content { hash, offset, bytes });
        }
        let lent = |(post, member): (&Post, &mut Member)| (*post, member.lend());
        let lent: Vec<_> = self.members.iter_mut().map(lent).collect();
        for (post, orders) in lent {
            orders.iter().for_each(|(source, order)| self.send_down(post, *source, order));
        }
    }

    /// A job is to begin here: as soon as its programs are there.
    pub fn begin_when_ready(&mut self, number: u32, begin: Box<Begin>) {
        let fetched = self.fetch(number, &begin);
        let Some(member) = self.members.get_mut(&(number, false)) else { return };
        match fetched {
            Ok(()) => member.wait_for_programs(begin),
            Err(reason) => member.refuse(reason),
        }
    }

    /// Begins the jobs that wait for nothing any more; whether there were any. To be called when
    /// the hosts below have been told, so that they do not wait for what takes time here.
    pub fn begin_waiting(&mut self) -> bool {
        let (mut ready, mut refused) = (Vec::new(), false);
        for ((number, _), member) in &mut self.members {
            let Some(begin) = &member.waiting else { continue };
            let files = staging::files(&begin.spec);
            let broken = files.iter().find(|(one, _)| {
                !matches!(self.store.find(*number, &one.hash), Some(Found::Whole | Found::Coming))
            });
            if let Some((_, place)) = broken {
                let name = place.file_name().unwrap_or_default().to_string_lossy();
                let reason = format!("{name} could not be read to its end, or changed meanwhile");
                member.waiting = None;
                member.refuse(reason);
                refused = true;
            } else if files
                .iter()
                .all(|(one, _)| self.store.find(*number, &one.hash) == Some(Found::Whole))
            {
                ready.extend(member.waiting.take().map(|begin| (*number, begin)));
            }
        }
        let were_any = refused || !ready.is_empty();
        for (number, begin) in ready {
            self.begin_here(number, &begin);
            self.hand_on();
        }
        were_any
    }
}
