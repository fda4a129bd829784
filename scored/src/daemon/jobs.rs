//! Jobs in the loop: orders on their way down, reports on their way up, and what happens to both
//! when somebody is gone.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use score_proto::frame;
use score_proto::message::{JobSpec, Level, Up};
use score_proto::order::{Begin, Order, Owner as JobOwner, Placement, Report, Until};
use score_proto::peer::Peer;

use super::member::{Above, LOST, Member, Start};
use super::muster::{self, Muster};
use super::peers::Peers;
use super::relay::{Out, SHEPHERD};
use super::session::Lane;
use super::store::Wish;
use super::{Daemon, Owner, SWEEP, directory, host_name, random};
use crate::cluster::Share;
use crate::job::check;
use crate::job::life::{Action, Bid, Event, Job};

/// A job that this daemon leads.
#[derive(Debug)]
pub struct Lead {
    job: Job,
    /// Who has submitted it.
    pub lane: Lane,
    /// Where it runs, as the gang scheduler sees it.
    pub shares: Vec<Share>,
    /// Its hosts by name, in order.
    hosts: Vec<String>,
    /// Its share among those that compete with it: 0 to 15.
    pub priority: u8,
    /// Directories of the job on hosts that share this machine's disk.
    directories: BTreeMap<u32, String>,
}

/// A place in a job's tree: the job, and whether it is the one above the first host. A daemon that
/// leads a job which begins on another host has that one, and perhaps one of its own further down.
pub type Post = (u32, bool);

impl Daemon {
    /// Begins a job whose hosts are all there, with these daemons.
    pub fn begin(&mut self, lane: Lane, spec: JobSpec, daemons: Option<Vec<muster::Daemon>>) {
        let number = self.next_job;
        self.next_job += 1;
        self.begin_as(lane, number, spec, daemons, None);
    }

    /// The same under a number that was given elsewhere, and for a user among others.
    pub fn begin_as(
        &mut self,
        lane: Lane,
        number: u32,
        spec: JobSpec,
        daemons: Option<Vec<muster::Daemon>>,
        owner: Option<JobOwner>,
    ) {
        let session = self.sessions.get_mut(&lane.session);
        if !session.is_some_and(|session| session.number(lane.job, number)) {
            return self.job_over(number, LOST);
        }
        let daemons = daemons.unwrap_or_default();
        let place = |(at, host): (usize, &score_proto::message::HostSpec)| {
            let name = if host.name.is_empty() { host_name() } else { host.name.clone() };
            (name, daemons.get(at).copied(), host.procs)
        };
        let hosts = spec.hosts.iter().map(|host| host.name.clone()).collect();
        let life = random().unwrap_or_default();
        let placement = Placement::new(life, spec.hosts.iter().enumerate().map(place));
        let secret = random().unwrap_or_default();
        let priority = check::priority(&spec);
        let shares = self.shares(&spec);
        let begin = Begin { job: number, secret, spec, owner };
        let (job, orders) = Job::begin(begin, placement);
        let directories = BTreeMap::new();
        self.leads.insert(number, Lead { job, lane, hosts, shares, priority, directories });
        if let Some(Order::Begin(begin)) = orders.last()
            && let Err(reason) = self.fetch(number, begin)
        {
            self.leads.remove(&number);
            return self.refuse(lane, reason, LOST);
        }
        orders.into_iter().for_each(|order| self.lead_order(number, order));
    }

    /// Something for the master of a job.
    pub fn lead(&mut self, number: Option<u32>, event: Event) {
        let Some(number) = number else { return };
        let Some(lead) = self.leads.get_mut(&number) else { return };
        if let Event::Report(report) = &event {
            match report {
                Report::Directory { host, path }
                    if self.muster.as_ref().is_some_and(Muster::is_virtual) =>
                {
                    lead.directories.insert(*host, path.clone());
                }
                Report::HostsGone { hosts, .. } => {
                    let gone = lead.hosts.get(hosts.start as usize..hosts.end as usize);
                    if let (Some(gone), Some(muster)) = (gone, &mut self.muster) {
                        gone.iter().for_each(|host| muster.give_up(host));
                    }
                }
                _ => {}
            }
        }
        lead.job.set_time(self.began.elapsed());
        let actions = lead.job.on(event);
        let (lane, is_over) = (lead.lane, lead.job.is_over());
        if is_over && let Some(lead) = self.leads.remove(&number) {
            // What a host that is gone could not remove itself.
            lead.directories.values().for_each(|path| directory::remove_abandoned(path));
        }
        let mut code = 0;
        for action in actions {
            match action {
                Action::Up(up) => {
                    match &up {
                        Up::Finished(end) => code = end.code,
                        Up::Refused { code: why, .. } => code = *why,
                        _ => {}
                    }
                    self.tell(number, lane, &up);
                }
                Action::Figures(figures) => {
                    self.show_on_page(number, &figures);
                    self.show(number, figures);
                }
                Action::Order(order) => self.lead_order(number, order),
                Action::Gang(bid) => self.bid(number, bid),
            }
        }
        if is_over {
            self.watched_is_over(number, code);
            self.job_over(number, code);
        }
        self.grant_bids();
    }

    /// When the master of some job has something to do by the clock.
    pub fn leads_deadline(&self) -> Option<Duration> {
        let due = self.leads.values().filter_map(|lead| lead.job.deadline()).min()?;
        Some(due.saturating_sub(self.began.elapsed()))
    }

    /// Has those masters act whose time has come.
    pub fn tick_leads(&mut self) {
        let now = self.began.elapsed();
        let is_due = |lead: &Lead| lead.job.deadline().is_some_and(|due| due <= now);
        let due: Vec<u32> =
            self.leads.iter().filter(|(_, lead)| is_due(lead)).map(|(job, _)| *job).collect();
        due.into_iter().for_each(|job| self.lead(Some(job), Event::Tick));
    }

    /// An order of this daemon's own master: for the first host of the job, which is this one or
    /// another.
    fn lead_order(&mut self, number: u32, order: Order) {
        if let Order::Place(placement) = &order {
            let first = placement.hosts.first();
            let elsewhere = first.is_some_and(|first| first.name != self.name());
            let is_root = self.peers.is_some() && elsewhere;
            let placement = placement.clone();
            let member = match is_root {
                true => Member::above_all(placement),
                false => Member::new(placement, Above::Master),
            };
            self.place((number, is_root), member);
        }
        for post in [(number, true), (number, false)] {
            if let Some(member) = self.members.get_mut(&post)
                && member.above == Above::Master
            {
                member.relay.ordered(order.clone());
            }
        }
    }

    /// Takes a place in a job's tree: finds or makes the links to the hosts right below.
    fn place(&mut self, post: Post, member: Member) {
        let member = self.members.entry(post).or_insert(member);
        let hosts = &member.relay.placement().hosts;
        let below: Vec<_> = member
            .relay
            .below()
            .map(|(source, host)| (source, hosts.get(host as usize).cloned()))
            .collect();
        for (source, place) in below {
            let link = place.ok_or_else(String::new).and_then(|place| self.link(&place));
            let Some(member) = self.members.get_mut(&post) else { return };
            match link {
                Ok(link) => member.below.insert(source, link),
                Err(reason) => {
                    member.relay.lost(source, LOST, reason);
                    None
                }
            };
        }
    }

    fn link(&mut self, place: &score_proto::order::Place) -> Result<usize, String> {
        let name = &place.name;
        let token = self.token(Owner::Peer);
        let Some(peers) = &mut self.peers else {
            return Err(format!("host {name}: this daemon has no links"));
        };
        if let Some(link) = peers.to(name) {
            self.owners.remove(&token);
            return Ok(link);
        }
        let address = place.address.ok_or(format!("host {name}: it has no address"))?;
        peers
            .dial(address, Some(name.clone()), self.poll.registry(), token)
            .map_err(|error| format!("host {name} at {address}: {error}"))?;
        Ok(token.0)
    }

    /// An order has come over a link.
    pub fn ordered(&mut self, link: usize, (number, life): (u32, u64), body: &[u8]) {
        let Ok(order) = frame::decode_datagram::<Order>(body) else {
            return eprintln!("scored: job {number}: an order that cannot be read");
        };
        let post = (number, false);
        if let Order::Place(placement) = &order {
            // What is here under this number is of a server that is no more.
            if self.members.get(&post).is_some_and(|one| one.life() != life) {
                self.dismiss(post);
            }
            if let Err(reason) = self.may_place(placement, life) {
                let report = Report::NotHere { reason };
                return self.send_report(link, (number, life), &report);
            }
        }
        match (&order, self.members.get(&post).filter(|one| one.life() == life)) {
            (Order::Place(placement), None) => {
                self.place(post, Member::new(placement.clone(), Above::Peer(link)));
            }
            (Order::Content { hash, offset, bytes }, Some(member))
                if member.above == Above::Peer(link) =>
            {
                return self.content_came(number, hash, *offset, bytes);
            }
            (Order::Lent { hash, path }, Some(member)) if member.above == Above::Peer(link) => {
                return self.content_lent(number, hash, Path::new(OsStr::from_bytes(&path.0)));
            }
            (Order::Abandon, Some(member)) if member.above == Above::Peer(link) => {
                return self.abandon(number);
            }
            (_, Some(member)) if member.above == Above::Peer(link) => {}
            // Of a job that has just gone, or from somebody who is not above us.
            _ => return,
        }
        self.members.get_mut(&post).into_iter().for_each(|one| one.relay.ordered(order.clone()));
    }

    /// Whether this daemon may have a part in that job.
    fn may_place(&self, placement: &Placement, life: u64) -> Result<(), String> {
        placement.check()?;
        let meant = placement.here().and_then(|here| here.incarnation);
        let own = self.peers.as_ref().map(Peers::incarnation);
        match meant == own && placement.life == life {
            true => Ok(()),
            false => Err("its scored has begun anew since the job was given to it".to_owned()),
        }
    }

    pub fn send_report(&mut self, link: usize, (job, life): (u32, u64), report: &Report) {
        let is_slow = self.peers.as_ref().is_some_and(|peers| peers.is_slow(link));
        if is_slow && matches!(report, Report::Figures(_)) {
            // Newer ones come.
            return;
        }
        if let (Ok(body), Some(peers)) = (frame::encode_datagram(report), &mut self.peers) {
            peers.send(link, Peer::Report { job, life, body });
        }
    }

    /// A report has come over a link.
    pub fn reported(&mut self, link: usize, (number, life): (u32, u64), body: &[u8]) {
        let Ok(report) = frame::decode_datagram::<Report>(body) else {
            return eprintln!("scored: job {number}: a report that cannot be read");
        };
        for post in [(number, true), (number, false)] {
            if let Some(member) = self.members.get_mut(&post).filter(|one| one.life() == life)
                && let Some(source) = member.source(link)
            {
                return match report {
                    Report::Want { hash, offset, length } => {
                        self.content_wanted(post, source, Wish { hash, offset, length });
                    }
                    Report::NotHere { reason } => member.lose(source, &reason),
                    report => member.relay.reported(source, report),
                };
            }
        }
    }

    /// A link is gone: whoever is above does not want its jobs any more, whoever is below is lost.
    pub fn unlinked(&mut self, link: usize, reason: &str) {
        let posts: Vec<Post> = self.members.keys().copied().collect();
        for post in posts {
            let Some(member) = self.members.get_mut(&post) else { continue };
            if member.above == Above::Peer(link) {
                self.dismiss(post);
            } else if let Some(source) = member.source(link) {
                member.lose(source, reason);
            }
        }
    }

    /// Which job has this number here.
    fn life(&self, number: u32) -> u64 {
        let posts = [(number, true), (number, false)];
        posts.iter().find_map(|post| self.members.get(post)).map_or(0, Member::life)
    }

    /// Moves orders and reports until there are none, those of jobs that begin meanwhile, too.
    pub fn settle(&mut self) {
        while self.settle_once() {}
    }

    fn settle_once(&mut self) -> bool {
        let mut moved = false;
        let mut posts: VecDeque<Post> = self.members.keys().copied().collect();
        while let Some(post) = posts.pop_front() {
            let number = post.0;
            let Some(member) = self.members.get_mut(&post) else { continue };
            let outs = member.relay.take();
            let (is_finished, above) = (member.relay.is_finished(), member.above);
            if !outs.is_empty() {
                moved = true;
                // What goes up here may come down again, at either place of the job.
                posts.extend([(number, true), (number, false)]);
            }
            for out in outs {
                match out {
                    Out::Up(report) => self.send_up(number, above, report),
                    Out::Down(SHEPHERD, order) => self.own_order(number, order),
                    Out::Down(source, order) => self.send_down(post, source, &order),
                }
            }
            if is_finished {
                self.members.remove(&post);
                self.forget(number);
            }
        }
        moved
    }

    /// What a job has had here may go, if it has gone everywhere.
    fn forget(&mut self, number: u32) {
        let runs = [true, false].iter().any(|root| self.members.contains_key(&(number, *root)));
        if !runs {
            let of_it = |owner: &Owner| match owner {
                Owner::Shepherd(job) | Owner::Switch(job) => *job == number,
                _ => false,
            };
            self.owners.retain(|_, owner| !of_it(owner));
        }
        if !runs && !self.leads.contains_key(&number) {
            for (other, wish) in self.store.release(number) {
                self.wish(other, wish);
            }
        }
    }

    fn send_up(&mut self, number: u32, above: Above, report: Report) {
        match above {
            Above::Master => self.lead(Some(number), Event::Report(report)),
            Above::Peer(link) => {
                let life = self.life(number);
                self.send_report(link, (number, life), &report);
            }
        }
    }

    pub fn send_down(&mut self, post: Post, source: usize, order: &Order) {
        let Some(member) = self.members.get_mut(&post) else { return };
        let life = member.life();
        let (Some(link), Some(peers)) = (member.below.get(&source), &mut self.peers) else {
            return;
        };
        let sent = frame::encode_datagram(order)
            .is_ok_and(|body| peers.send(*link, Peer::Order { job: post.0, life, body }));
        if !sent {
            let reason = "arguments and environment are too long to be sent to other hosts";
            member.relay.lost(source, LOST, reason.to_owned());
        }
    }

    /// An order for this host alone.
    fn own_order(&mut self, number: u32, order: Order) {
        match order {
            // The shepherd is told when it is there.
            Order::Place(_) => {}
            Order::Begin(begin) => self.begin_when_ready(number, begin),
            order => {
                if let Order::Run { until: Until::Passed { .. } | Until::Turns(_), .. } = order {
                    self.awake.keep(Instant::now());
                }
                let Some((number, order)) = self.turns.ordered(number, order) else { return };
                let member = self.members.get_mut(&(number, false));
                member.into_iter().for_each(|member| member.ordered(&order));
            }
        }
    }

    /// Everything that a job needs is on this host: it begins here.
    pub fn begin_here(&mut self, number: u32, begin: &Begin) {
        let [token, switch] =
            [Owner::Shepherd(number), Owner::Switch(number)].map(|owner| self.token(owner));
        let Some(member) = self.members.get_mut(&(number, false)) else { return };
        let (above, own, life) = (member.above, member.relay.placement().own, member.life());
        let lane = self.leads.get(&number).map(|lead| lead.lane);
        let mut session =
            lane.and_then(|Lane { session, job }| Some((self.sessions.get_mut(&session)?, job)));
        let peers = &mut self.peers;
        // It goes out before the directory is there.
        let for_all = begin.owner.is_some();
        let mut announce = |path: &str| match (above, &mut session, &mut *peers) {
            // A user could not remove it; the next scored does.
            _ if for_all => {}
            (Above::Master, Some((session, job)), _) => {
                session.tell(*job, &Up::Directory(path.to_owned()));
                session.flush();
            }
            (Above::Peer(link), _, Some(peers)) => {
                let report = Report::Directory { host: own, path: path.to_owned() };
                if let Ok(body) = frame::encode_datagram(&report) {
                    peers.send(link, Peer::Report { job: number, life, body });
                    peers.flush();
                }
            }
            _ => {}
        };
        let sweeps = self.swept.is_none_or(|last| last.elapsed() > SWEEP);
        if sweeps {
            self.swept = Some(Instant::now());
        }
        let start = Start {
            no_namespace: self.setting.no_namespace,
            registry: self.poll.registry(),
            token,
            switch,
            family: self.family.clone(),
            store: &self.store,
            cgroups: &self.cgroups,
            sweeps,
            announce: &mut announce,
        };
        member.begin(begin, start);
    }

    /// Ends a job that nobody wants to hear of any more.
    pub fn abandon(&mut self, number: u32) {
        if let Some(lead) = self.leads.remove(&number) {
            lead.directories.values().for_each(|path| directory::remove_abandoned(path));
            self.bid(number, Bid::Leave);
        }
        self.dismiss((number, true));
        self.dismiss((number, false));
        self.forget(number);
    }

    fn dismiss(&mut self, post: Post) {
        let Some(mut member) = self.members.remove(&post) else { return };
        let life = member.life();
        for link in member.below.values() {
            if let (Ok(body), Some(peers)) =
                (frame::encode_datagram(&Order::Abandon), &mut self.peers)
            {
                peers.send(*link, Peer::Order { job: post.0, life, body });
            }
        }
        member.abort();
    }

    /// In single-user mode every daemon has a link to the server. While a job runs, the links of
    /// its tree tell who is lost; the others say rarely that they live, or many idle hosts would
    /// keep a processor busy with that.
    pub fn spare_links(&mut self) {
        let carries = |link: usize| {
            let of = |member: &Member| {
                member.above == Above::Peer(link) || member.source(link).is_some()
            };
            self.members.is_empty() || self.members.values().any(of)
        };
        let Some(peers) = &self.peers else { return };
        let links = match (self.server, &self.muster) {
            (Some(link), _) => vec![link],
            (None, Some(_)) => peers.numbers(),
            (None, None) => return,
        };
        let links: Vec<_> = links.into_iter().map(|link| (link, !carries(link))).collect();
        for (link, rarely) in links {
            self.peers.iter_mut().for_each(|peers| peers.speak_rarely(link, rarely));
        }
    }

    /// Something about a job for whoever has submitted it; its number there may be another job's
    /// by now.
    pub fn tell(&mut self, number: u32, lane: Lane, up: &Up) {
        if let Some(session) = self.sessions.get_mut(&lane.session)
            && session.number_of(lane.job) == Some(number)
        {
            session.tell(lane.job, up);
        }
    }

    /// A line for the user of a session.
    pub fn notice(&mut self, lane: Lane, level: Level, text: String) {
        if let Some(session) = self.sessions.get_mut(&lane.session) {
            session.tell(lane.job, &Up::Notice { level, text });
        }
    }
}
