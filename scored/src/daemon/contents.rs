//! Programs on their way through a daemon: from scrun or the host above into the store, and on to
//! the hosts below.

use score_proto::frame;
use score_proto::message::{ContentHash, JobSpec, Up};
use score_proto::order::{Begin, Order, Report};
use score_proto::peer::Peer;

use super::Daemon;
use super::jobs::Post;
use super::member::Above;
use super::store::{Asker, Found, LARGEST, Wish};
use crate::job::staging;

impl Daemon {
    /// Sees to it that the programs of a job come here.
    pub fn fetch(&mut self, number: u32, spec: &JobSpec) -> Result<(), String> {
        for (content, place) in staging::files(spec) {
            if content.size > LARGEST {
                return Err(format!(
                    "{} has {} bytes: at most {LARGEST} travel to other hosts",
                    place.display(),
                    content.size
                ));
            }
            let wish = self.store.need(content, number);
            let wish = wish.map_err(|error| format!("no memory for programs: {error}"))?;
            wish.into_iter().for_each(|wish| self.wish(number, wish));
        }
        Ok(())
    }

    /// Asks for more of a program: scrun, or the host above.
    fn wish(&mut self, number: u32, Wish { hash, offset, length }: Wish) {
        if let Some(lead) = self.leads.get(&number) {
            let session = self.sessions.get_mut(&lead.session);
            return session
                .into_iter()
                .for_each(|session| session.tell(&Up::Want { hash, offset, length }));
        }
        let member = self.members.get(&(number, false));
        if let Some(Above::Peer(link)) = member.map(|member| member.above)
            && let Some(peers) = &mut self.peers
            && let Ok(body) = frame::encode_datagram(&Report::Want { hash, offset, length })
        {
            peers.send(link, Peer::Report { job: number, body });
        }
    }

    /// A piece has come from there.
    pub fn content_came(&mut self, number: u32, hash: &ContentHash, offset: u64, bytes: &[u8]) {
        if let Some(wish) = self.store.push(number, hash, offset, bytes) {
            self.wish(number, wish);
        }
        self.hand_on();
        self.begin_waiting();
    }

    /// A host below asks for a piece.
    pub fn content_wanted(&mut self, post: Post, source: usize, wish: Wish) {
        self.store.ask(Asker { post, source }, wish);
        self.hand_on();
    }

    fn hand_on(&mut self) {
        for piece in self.store.pieces() {
            let Asker { post, source } = piece.to;
            let (hash, offset, bytes) = (piece.hash, piece.offset, piece.bytes);
            self.send_down(post, source, &Order::Content { hash, offset, bytes });
        }
    }

    /// A job is to begin here: as soon as its programs are there.
    pub fn begin_when_ready(&mut self, number: u32, begin: Box<Begin>) {
        let fetched = self.fetch(number, &begin.spec);
        let Some(member) = self.members.get_mut(&(number, false)) else { return };
        match fetched {
            Ok(()) => member.waiting = Some(begin),
            Err(reason) => member.refuse(reason),
        }
        self.begin_waiting();
    }

    fn begin_waiting(&mut self) {
        let mut ready = Vec::new();
        for ((number, _), member) in &mut self.members {
            let Some(begin) = &member.waiting else { continue };
            let files = staging::files(&begin.spec);
            let broken = files.iter().find(|(one, _)| {
                !matches!(self.store.find(&one.hash), Some(Found::Whole | Found::Coming))
            });
            if let Some((_, place)) = broken {
                let name = place.file_name().unwrap_or_default().to_string_lossy();
                let reason = format!("{name} could not be read to its end, or changed meanwhile");
                member.waiting = None;
                member.refuse(reason);
            } else if files.iter().all(|(one, _)| self.store.find(&one.hash) == Some(Found::Whole))
            {
                ready.extend(member.waiting.take().map(|begin| (*number, begin)));
            }
        }
        for (number, begin) in ready {
            self.begin_here(number, &begin);
        }
    }
}
