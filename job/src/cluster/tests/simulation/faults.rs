//! Faults of simulated hosts and of their links.

use score_proto::ids::{HostId, JobId};
use score_proto::peer_message::SERVER;

use super::{MonotonicTime, RunningShare, SimEvent, Simulation, TIMEOUTS};

impl Simulation {
    /// The daemon dies. With `power`, the whole host dies, and its peers are not notified.
    pub fn kill(&mut self, host: HostId, power: bool) {
        self.trace(|| format!("c{host} dies, power {power}"));
        self.expect_declared_down(host, None);
        let found = &mut self.hosts[host.index()];
        (found.is_alive, found.is_stopped, found.last_fault_at) =
            (false, false, MonotonicTime::MAX);
        (found.generation, found.unreachable_since, found.powered_off) =
            (found.generation + 1, None, power);
        found.member = None;
        found.running_shares.clear();
        found.held_events.clear();
        if host == SERVER {
            self.server = None;
            self.masters.clear();
            self.sessions.clear();
            self.submissions.values_mut().for_each(|submission| submission.dropped = true);
        }
        for pair in self.links_of(host) {
            let other = if pair.0 == host { pair.1 } else { pair.0 };
            let is_reachable = self.hosts[other.index()].group == self.hosts[host.index()].group;
            let link = self.links.remove(&pair).unwrap();
            let since = link.silent_since.unwrap_or(self.now);
            let when = if power || !is_reachable {
                since + TIMEOUTS.silence
            } else {
                self.now + MonotonicTime::from_millis(1)
            };
            let reason = if power { "no data received" } else { "closed" };
            self.report_link_loss(other, host, when.max(self.now), reason);
        }
    }

    /// Expects that the current incarnation is declared down in time, unless the fault that begins
    /// now ends earlier.
    fn expect_declared_down(&mut self, host: HostId, since: Option<MonotonicTime>) {
        if let Some(member) = &self.hosts[host.index()].member {
            let (incarnation, generation) = (member.incarnation(), self.hosts[0].generation);
            self.schedule(
                self.now + self.detection_bound,
                SimEvent::CheckDeclaredDown { host, incarnation, generation, since },
            );
        }
    }

    pub fn stop(&mut self, host: HostId, stopped: bool) {
        if !self.hosts[host.index()].is_alive || self.hosts[host.index()].is_stopped == stopped {
            return;
        }
        self.trace(|| format!("c{host} stopped {stopped}"));
        let last_fault_at = if stopped { MonotonicTime::MAX } else { self.now };
        let found = &mut self.hosts[host.index()];
        (found.is_stopped, found.last_fault_at) = (stopped, last_fault_at);
        self.set_unreachable(host, stopped);
        let found = &mut self.hosts[host.index()];
        if !stopped {
            for event in std::mem::take(&mut found.held_events) {
                self.schedule(self.now, event);
            }
            self.schedule_tick(host);
        }
        self.update_link_silence();
    }

    pub fn cut(&mut self, host: HostId, group: u8) {
        self.trace(|| format!("c{host} in group {group}"));
        let found = &mut self.hosts[host.index()];
        found.group = group;
        found.last_fault_at = if group == 0 { self.now } else { MonotonicTime::MAX };
        self.set_unreachable(host, group != 0);
        self.update_link_silence();
    }

    fn set_unreachable(&mut self, host: HostId, is_unreachable: bool) {
        if host == SERVER {
            // All other hosts become unreachable with the server.
            let last_fault_at = if is_unreachable { MonotonicTime::MAX } else { self.now };
            self.hosts.iter_mut().for_each(|host| host.last_fault_at = last_fault_at);
            return;
        }
        let unreachable_since = is_unreachable.then_some(self.now);
        self.hosts[host.index()].unreachable_since = unreachable_since;
        if unreachable_since.is_some() {
            self.expect_declared_down(host, unreachable_since);
        }
    }

    /// The links by which the jobs of a host get their orders break, but the host stays in the
    /// cluster. The server and the host notice this independently, within the silence limit.
    pub fn break_job_links(&mut self, host: HostId) {
        let [below, above] = [host, SERVER].map(|host| self.hosts[host.index()].generation);
        let shares = self.hosts[host.index()].running_shares.iter_mut();
        let cut = |(job, run): (&JobId, &mut RunningShare)| {
            (!std::mem::replace(&mut run.is_cut, true)).then_some(*job)
        };
        for job in shares.filter_map(cut).collect::<Vec<_>>() {
            self.trace(|| format!("c{host} loses its links of job {job}"));
            self.coverage.broken_job_links += 1;
            let silence = TIMEOUTS.silence.as_millis() as u64;
            let noticed_at = [(); 2].map(|()| self.now + self.random.time(0, silence));
            self.schedule(noticed_at[0], SimEvent::HostLost { host, generation: above, job });
            self.schedule(noticed_at[1], SimEvent::JobLinkLost { host, generation: below, job });
        }
    }
}
