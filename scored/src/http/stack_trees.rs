//! Stacks of jobs for the status page. They are read when the owner of a job requests them, or kept
//! when the user gets them with a deadlock or crash report. Only the owner of a job may see its
//! stacks, as with all tools.
//!
//! The stacks come from processes of users and are untrusted. Therefore the size of each reading
//! ([`BOUNDS`]) and the rate of readings are limited.

use std::collections::BTreeMap;
use std::time::Duration;

use score_job::cluster::MonotonicTime;
use score_job::master::PageStacks;
use score_proto::ids::JobId;
use score_proto::server_message::{ReportedStacks, ToolAnswer};
use score_stacks::collected::{CollectBounds, CollectedStacks};
use score_stacks::render::RenderLimits;
use serde_json::{Value, json};

/// The limits of one reading. Merging takes about 10 ms and 16 MB at most.
const BOUNDS: CollectBounds = CollectBounds { bytes: 256 << 10, nodes: 1 << 13, steps: 2_000_000 };
/// The limits of the displayed tree.
const LIMITS: RenderLimits = RenderLimits { max_depth: 128, max_nodes: 2000 };
/// The maximum length of a tree's text, in bytes.
const MAX_TEXT_LEN: usize = 256 << 10;
/// The maximum number of lines about ranks that are not in a tree, and their maximum length.
const MAX_PROBLEMS: usize = 32;
const MAX_PROBLEM_LEN: usize = 400;

/// The shortest interval between two readings of one user. A reading stops each process for a
/// moment.
const USER_INTERVAL: Duration = Duration::from_secs(2);
/// The mean interval between readings of all users, and the number that may be started at once.
const MEAN_INTERVAL: Duration = Duration::from_millis(200);
const BURST: u32 = 10;
/// The longest duration of a reading. The job master ends it earlier.
const READING_TIMEOUT: Duration = Duration::from_secs(60);
/// How long stacks are kept.
const TREE_TTL: Duration = Duration::from_secs(3600);
/// The maximum number of trees that are kept for one user, and for all users.
const MAX_TREES_PER_USER: usize = 4;
const MAX_TREES: usize = 64;

/// The cause of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReadingCause {
    /// A reader of the page has requested it.
    Reader,
    /// A deadlock or crash report contains it.
    Report,
}

/// The error if there are too many readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyReadings;

/// The stacks of a job.
#[derive(Debug)]
struct StackTreeOfJob {
    uid: u32,
    began: MonotonicTime,
    /// The time of the reading, in seconds since 1970, for display.
    unix_seconds: u64,
    /// The title of a report, which is empty until it is known. `None` if a reader has requested
    /// the stacks.
    title: Option<String>,
    state: ReadingState,
}

#[derive(Debug)]
enum ReadingState {
    Reading(Box<CollectedStacks>),
    Read { text: String, problems: Vec<String> },
    Failed(String),
}

/// The stacks of all jobs.
#[derive(Debug, Default)]
pub struct StackTrees {
    by_job: BTreeMap<JobId, StackTreeOfJob>,
    /// The time at which the last reading began, by user and cause.
    last_readings: BTreeMap<(u32, ReadingCause), MonotonicTime>,
    /// The time at which a further reading would comply with the mean interval.
    paid_until: MonotonicTime,
}

impl StackTrees {
    /// Starts a reading of a job's stacks for the owner of the job. Returns false if a reading is
    /// in progress.
    ///
    /// # Errors
    /// There were too many readings shortly before.
    pub fn begin(
        &mut self,
        job: JobId,
        uid: u32,
        now: MonotonicTime,
        unix_seconds: u64,
    ) -> Result<bool, TooManyReadings> {
        if self.by_job.get(&job).is_some_and(|tree| tree.is_being_read(now)) {
            return Ok(false);
        }
        self.pay(uid, ReadingCause::Reader, now)?;
        self.insert(job, uid, now, unix_seconds, None);
        Ok(true)
    }

    /// Accounts for a reading, unless this user or all users have had too many.
    fn pay(
        &mut self,
        uid: u32,
        cause: ReadingCause,
        now: MonotonicTime,
    ) -> Result<(), TooManyReadings> {
        self.last_readings.retain(|_, last| *last + USER_INTERVAL > now);
        let begin = self.paid_until.max(now);
        let is_late = begin > now + MEAN_INTERVAL * BURST;
        if is_late || self.last_readings.contains_key(&(uid, cause)) {
            return Err(TooManyReadings);
        }
        self.paid_until = begin + MEAN_INTERVAL;
        self.last_readings.insert((uid, cause), now);
        Ok(())
    }

    fn insert(
        &mut self,
        job: JobId,
        uid: u32,
        now: MonotonicTime,
        unix_seconds: u64,
        title: Option<String>,
    ) {
        self.by_job.retain(|_, tree| tree.began + TREE_TTL > now);
        self.by_job.remove(&job);
        let of_user = self.by_job.values().filter(|tree| tree.uid == uid).count();
        let is_candidate = |tree: &StackTreeOfJob| of_user < MAX_TREES_PER_USER || tree.uid == uid;
        if of_user >= MAX_TREES_PER_USER || self.by_job.len() >= MAX_TREES {
            let candidates = self.by_job.iter().filter(|(_, tree)| is_candidate(tree));
            let oldest = candidates.min_by_key(|(_, tree)| tree.began).map(|(job, _)| *job);
            oldest.into_iter().for_each(|job| _ = self.by_job.remove(&job));
        }
        let collected = Box::new(CollectedStacks::bounded(BOUNDS));
        let state = ReadingState::Reading(collected);
        self.by_job.insert(job, StackTreeOfJob { uid, began: now, unix_seconds, title, state });
    }

    /// Adds a result to the reading of a job.
    pub fn on_stacks(&mut self, job: JobId, stacks: PageStacks) {
        let tree = self.by_job.get_mut(&job).filter(|tree| tree.title.is_none());
        let Some(tree) = tree else { return };
        match stacks {
            PageStacks::Part(answer) => tree.add(answer),
            PageStacks::End => tree.end(),
            PageStacks::Refused(reason) => tree.state = ReadingState::Failed(reason),
        }
    }

    /// Adds a part of a deadlock or crash report, so that the page also shows the stacks of the
    /// report. `owner` returns the user of the job, if it exists.
    pub fn on_report(
        &mut self,
        job: JobId,
        owner: impl FnOnce() -> Option<u32>,
        stacks: &ReportedStacks,
        now: MonotonicTime,
        unix_seconds: u64,
    ) {
        match stacks {
            // This is the first part of a report.
            ReportedStacks::Part(answer @ ToolAnswer::Programs { .. }) => {
                let Some(uid) = owner() else { return };
                if self.pay(uid, ReadingCause::Report, now).is_err() {
                    return;
                }
                self.insert(job, uid, now, unix_seconds, Some(String::new()));
                self.by_job.get_mut(&job).into_iter().for_each(|tree| tree.add(answer.clone()));
            }
            ReportedStacks::Part(answer) => {
                self.report_of(job).into_iter().for_each(|tree| tree.add(answer.clone()));
            }
            ReportedStacks::End { title } => {
                let Some(tree) = self.report_of(job) else { return };
                tree.title = Some(cut(title, MAX_PROBLEM_LEN));
                tree.end();
            }
        }
    }

    fn report_of(&mut self, job: JobId) -> Option<&mut StackTreeOfJob> {
        self.by_job.get_mut(&job).filter(|tree| tree.title.is_some())
    }

    /// The jobs whose stacks a user may see: number, title and time of each.
    pub fn list(&self, uid: u32) -> Vec<Value> {
        let own = self.by_job.iter().filter(|(_, tree)| tree.uid == uid);
        own.map(|(job, tree)| json!([job, tree.title, tree.unix_seconds])).collect()
    }

    /// The stacks of a job as JSON. `None` if there are none, or if they belong to another user.
    pub fn json(&self, job: JobId, uid: u32, now: MonotonicTime) -> Option<String> {
        let tree = self.by_job.get(&job).filter(|tree| tree.uid == uid)?;
        let (state, text, problems) = match &tree.state {
            ReadingState::Reading(_) if tree.is_being_read(now) => ("reading", "", &[][..]),
            ReadingState::Reading(_) => ("failed", "the job has given no answer", &[][..]),
            ReadingState::Read { text, problems } => ("read", &text[..], &problems[..]),
            ReadingState::Failed(reason) => ("failed", &reason[..], &[][..]),
        };
        let value = json!({
            "job": job, "state": state, "title": tree.title, "text": text, "problems": problems,
            "read_at": tree.unix_seconds,
        });
        Some(value.to_string())
    }
}

impl StackTreeOfJob {
    fn is_being_read(&self, now: MonotonicTime) -> bool {
        matches!(self.state, ReadingState::Reading(_)) && now < self.began + READING_TIMEOUT
    }

    fn add(&mut self, answer: ToolAnswer) {
        if let ReadingState::Reading(collected) = &mut self.state {
            collected.add(answer);
        }
    }

    fn end(&mut self) {
        let ReadingState::Reading(collected) = &self.state else { return };
        let mut text = collected.text(LIMITS);
        if text.len() > MAX_TEXT_LEN {
            text = cut(&text, MAX_TEXT_LEN) + "\n... the rest is left out\n";
        }
        let problems = collected.problems();
        let more = problems.len().saturating_sub(MAX_PROBLEMS);
        let mut problems: Vec<String> =
            problems.iter().take(MAX_PROBLEMS).map(|line| cut(line, MAX_PROBLEM_LEN)).collect();
        problems.extend((more > 0).then(|| format!("{more} more lines of this kind")));
        self.state = ReadingState::Read { text, problems };
    }
}

/// The first `len` bytes of a text, without a partial character.
fn cut(text: &str, len: usize) -> String {
    let end = (0..=len.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::time::ClockId;
    use score_proto::nodeset::NodeSet;
    use score_proto::tool_command::{EventBody, ThreadKind, ThreadStacks, ToolResult};
    use score_stacks::frame::{Frame, Stack};

    const ALICE: u32 = 1000;
    const BOB: u32 = 1001;

    fn at(seconds: u64) -> MonotonicTime {
        Duration::from_secs(seconds)
    }

    fn answer(ranks: impl Into<NodeSet>, stacks: Vec<ThreadStacks>) -> ToolAnswer {
        let body = EventBody::Answer(ToolResult::Stacks { stacks, omitted: 0 }.encode());
        ToolAnswer::Event { ranks: ranks.into(), body }
    }

    fn stack(names: &[&str]) -> ThreadStacks {
        let frame = |name: &&str| Frame::Address { module: (*name).to_owned(), offset: 0 };
        let stack = Stack { frames: names.iter().map(frame).collect() }.encode().unwrap();
        ThreadStacks { kind: ThreadKind::Program, stack, threads: 1 }
    }

    fn shown(trees: &StackTrees, job: u32, uid: u32, now: MonotonicTime) -> Option<Value> {
        Some(serde_json::from_str(&trees.json(JobId(job), uid, now)?).unwrap())
    }

    #[test]
    fn a_reading_of_stacks_ends_with_a_tree_and_is_visible_to_its_user_only() {
        let (mut trees, job) = (StackTrees::default(), JobId(7));
        assert_eq!(shown(&trees, 7, ALICE, at(1)), None);
        assert_eq!(trees.begin(job, ALICE, at(1), 5), Ok(true));
        // The user clicks again, or has a second window.
        assert_eq!(trees.begin(job, ALICE, at(1), 5), Ok(false));
        assert_eq!(shown(&trees, 7, ALICE, at(1)).unwrap()["state"], "reading");
        let programs = ToolAnswer::Programs { names: vec!["heat".to_owned()], nodes: 4 };
        trees.on_stacks(job, PageStacks::Part(programs));
        trees.on_stacks(job, PageStacks::Part(answer(0..3, vec![stack(&["main", "<b>"])])));
        trees.on_stacks(job, PageStacks::Part(ToolAnswer::Missing(NodeSet::one(3))));
        trees.on_stacks(job, PageStacks::End);
        let tree = shown(&trees, 7, ALICE, at(2)).unwrap();
        assert_eq!((&tree["state"], &tree["read_at"]), (&json!("read"), &json!(5)));
        let text = tree["text"].as_str().unwrap();
        assert!(text.contains("<b>+0x0") && text.contains("[0-2]"), "{text}");
        assert_eq!(tree["problems"], json!(["rank 3: no answer in time"]));
        assert_eq!(trees.list(ALICE), [json!([7, null, 5])]);
        // The page shows nothing to another user.
        assert_eq!((shown(&trees, 7, BOB, at(2)), trees.list(BOB)), (None, Vec::new()));
        // A late answer changes nothing.
        trees.on_stacks(job, PageStacks::Part(answer(3..4, vec![stack(&["late"])])));
        assert_eq!(shown(&trees, 7, ALICE, at(2)), Some(tree));
    }

    #[test]
    fn a_reading_that_a_job_refuses_or_never_answers_fails_with_a_reason() {
        let mut trees = StackTrees::default();
        trees.begin(JobId(7), ALICE, at(0), 0).unwrap();
        let tree = |trees: &StackTrees, now| shown(trees, 7, ALICE, now).unwrap();
        assert_eq!(tree(&trees, at(59))["state"], "reading");
        assert_eq!(tree(&trees, at(60))["state"], "failed");
        trees.begin(JobId(7), ALICE, at(61), 0).unwrap();
        trees.on_stacks(JobId(7), PageStacks::Refused("no processes now".to_owned()));
        assert_eq!(tree(&trees, at(61))["text"], "no processes now");
    }

    // Promise of `the_owner_of_a_job_alone_has_its_stacks_read_and_sees_those_of_a_deadlock`.
    #[test]
    fn readings_of_a_user_and_of_all_users_are_limited() {
        let mut trees = StackTrees::default();
        trees.begin(JobId(1), ALICE, at(10), 0).unwrap();
        assert_eq!(trees.begin(JobId(2), ALICE, at(11), 0), Err(TooManyReadings));
        assert_eq!(trees.begin(JobId(2), ALICE, at(12), 0), Ok(true));
        let begun = (0..1000).filter(|uid| trees.begin(JobId(9), *uid, at(12), 0) == Ok(true));
        assert_eq!(begun.count(), 1, "the others have the same job");
        let begin = |trees: &mut StackTrees, number: u32, now| {
            trees.begin(JobId(number), number, now, 0) == Ok(true)
        };
        let begun = (10..1000).filter(|number| begin(&mut trees, *number, at(12)));
        assert!((5..=11).contains(&begun.count()));
        // After ten seconds the full burst is permitted again.
        let begun = (1000..2000).filter(|number| begin(&mut trees, *number, at(22)));
        assert_eq!(begun.count(), 11);
        assert!(trees.by_job.len() <= MAX_TREES && trees.last_readings.len() < 20);
    }

    #[test]
    fn few_trees_of_a_user_are_kept_and_the_oldest_tree_is_removed_first() {
        let mut trees = StackTrees::default();
        trees.begin(JobId(1), BOB, at(0), 0).unwrap();
        for number in 2..9 {
            trees.begin(JobId(number), ALICE, at(10 * u64::from(number)), 0).unwrap();
        }
        let jobs: Vec<u32> = trees.by_job.keys().map(|job| job.0).collect();
        assert_eq!(jobs, [1, 5, 6, 7, 8]);
        trees.begin(JobId(9), BOB, at(3660), 0).unwrap();
        assert_eq!(trees.by_job.keys().map(|job| job.0).collect::<Vec<_>>(), [7, 8, 9]);
    }

    #[test]
    fn a_report_of_a_deadlock_is_kept_for_the_owner() {
        let (mut trees, job) = (StackTrees::default(), JobId(7));
        let programs = ToolAnswer::Programs { names: vec!["heat".to_owned()], nodes: 2 };
        let parts = [
            ReportedStacks::Part(programs),
            ReportedStacks::Part(answer(0..2, vec![stack(&["main", "MPI_Recv"])])),
            ReportedStacks::End { title: "stacks of heat".to_owned() },
        ];
        // The owner has also requested stacks. The answers are not mixed with the report.
        trees.begin(job, ALICE, at(0), 8).unwrap();
        // A job without an owner.
        parts.iter().for_each(|part| trees.on_report(job, || None, part, at(1), 9));
        assert_eq!(shown(&trees, 7, ALICE, at(1)).unwrap()["state"], "reading");
        for part in &parts {
            trees.on_report(job, || Some(ALICE), part, at(1), 9);
            let late = answer(0..2, vec![stack(&["main", "late"])]);
            trees.on_stacks(job, PageStacks::Part(late));
        }
        trees.on_stacks(job, PageStacks::End);
        let tree = shown(&trees, 7, ALICE, at(1)).unwrap();
        assert_eq!((&tree["state"], &tree["title"]), (&json!("read"), &json!("stacks of heat")));
        let text = tree["text"].as_str().unwrap();
        assert!(text.contains("MPI_Recv") && !text.contains("late"), "{tree}");
        assert_eq!(trees.list(ALICE), [json!([7, "stacks of heat", 9])]);
        // Frequent crash reports of one user prevent neither readings of other users nor readings
        // that the user requests.
        let crash = |trees: &mut StackTrees, number, now| {
            let job = JobId(number);
            parts.iter().for_each(|part| trees.on_report(job, || Some(ALICE), part, now, 9));
        };
        (8..100).for_each(|number| crash(&mut trees, number, at(2)));
        assert_eq!(trees.list(ALICE).len(), 1);
        crash(&mut trees, 8, at(3));
        assert_eq!(trees.list(ALICE).len(), 2);
        assert_eq!(trees.begin(JobId(9), ALICE, at(3), 9), Ok(true));
        assert_eq!(trees.begin(JobId(10), BOB, at(3), 9), Ok(true));
    }

    // Promise of `the_owner_of_a_job_alone_has_its_stacks_read_and_sees_those_of_a_deadlock`.
    #[test]
    fn the_answers_of_a_hostile_job_use_bounded_time_and_text() {
        let mut trees = StackTrees::default();
        trees.begin(JobId(7), ALICE, at(0), 0).unwrap();
        let processor_time = || ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap().tv_sec();
        let before = processor_time();
        let name = "x".repeat(60_000);
        for number in 0..1000u32 {
            let ranks: NodeSet = (0..1000).map(|rank| 4 * rank + number % 4).collect();
            let mut frames = vec![Frame::Signal; 500];
            frames[0] = Frame::Omitted(u64::from(number));
            let deep = Stack { frames }.encode().unwrap();
            let deep = ThreadStacks { kind: ThreadKind::Program, stack: deep, threads: 1 };
            let stacks = vec![deep, stack(&[&name[..if number % 100 == 0 { 60_000 } else { 9 }]])];
            trees.on_stacks(JobId(7), PageStacks::Part(answer(ranks, stacks)));
        }
        trees.on_stacks(JobId(7), PageStacks::End);
        let tree = trees.json(JobId(7), ALICE, at(1)).unwrap();
        assert!(tree.contains("too many different stacks"));
        assert!(tree.len() < 2 * MAX_TEXT_LEN, "{}", tree.len());
        // Without limits this would take minutes and gigabytes.
        let seconds = processor_time() - before;
        assert!(seconds < 10, "{seconds} s");
    }
}
