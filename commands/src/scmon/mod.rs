//! `scmon`: what the processes of a job are doing (manual 3.5.3): bars on a terminal, a table, or a
//! line of JSON for each period.

mod draw;
mod options;
mod picture;
mod screen;
mod shown;
mod source;

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use score_monitor::View;
use score_proto::message::{Stream, Up};

use crate::cluster::Part;
use draw::{Around, Manner};
pub use options::Options;
use screen::{Screen, Wish};
use source::Source;

/// The text of `-help`.
pub const USAGE: &str = "\
usage: scmon [options] JOB
  What the processes of a job are doing, sorted by host: your own job, or any for operators.
  scrun -monitor=TYPE opens it for the job that it runs.
  -show TYPE      load (busy, by the idle flag), comm (messages), memory, disk, usr0, usr1 (what the
                  program has set), all (the first four; the default) or ALL; several times
                  for several
  -period MS      between two pictures: 50 to 10000, default 500
  -once           a table, once
  -svg            a picture of the screen as SVG, after 40 periods or at the end of the job
  -json           a line for each period, for programs; with -once one
  -socket PATH    where the scored of this host listens, if neither SCORED_SOCKET nor
                  /run/scored/scored.sock is right
  -help           this text
  Keys: q ends, arrows and page keys scroll, h shows hosts only, p processes, too.
";

/// Exit code: the command line is wrong.
pub const WRONG: u8 = 2;
/// Between two looks at the keyboard.
const KEYS: Duration = Duration::from_millis(50);
/// Lines of standard error that are kept until the terminal is given back, and of these shown.
const KEPT: usize = 1000;
const SHOWN: usize = 4;
/// Periods before a picture, and its columns and lines.
const PERIODS: u32 = 40;
const PICTURE: (u16, u16) = (120, 30);

/// Shows a job until it ends or the user does.
///
/// # Errors
/// One line.
pub fn run(options: &Options) -> Result<(), String> {
    let mut source = Source::open(options)?;
    let mut job = Job::new(options);
    if options.once || options.json || options.svg {
        return print(options, &mut source, &mut job);
    }
    let mut screen = Screen::open()?;
    let ended = look(options, &mut source, &mut job, &mut screen);
    drop(screen);
    let mut err = std::io::stderr().lock();
    // A reader that has gone has missed them anyway.
    let _ = err.write_all(&job.said).and_then(|()| err.flush());
    ended
}

/// What is known of the job.
struct Job {
    number: u32,
    began: Instant,
    view: View,
    nodes: u32,
    hosts: u32,
    /// What it has written to standard error, where this stands on the same terminal.
    said: Vec<u8>,
    /// Messages with figures.
    heard: u64,
}

impl Job {
    fn new(options: &Options) -> Self {
        let number = options.job.unwrap_or_default();
        let (view, said) = (View::default(), Vec::new());
        Self { number, began: Instant::now(), view, nodes: 0, hosts: 0, said, heard: 0 }
    }

    fn take(&mut self, up: Up) {
        match up {
            Up::Figures(figures) => {
                self.heard += 1;
                self.view.take(&figures, self.began.elapsed());
            }
            Up::Accepted { job, nodes, hosts } => {
                (self.number, self.nodes, self.hosts) = (job, nodes, hosts);
            }
            Up::Output { stream: Stream::Stderr, bytes, .. } => self.hear(&bytes),
            Up::Notice { text, .. } => self.hear(format!("{text}\n").as_bytes()),
            _ => {}
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.said.extend_from_slice(bytes);
        let ends = self.said.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        if let Some((at, _)) = ends.map(|(at, byte)| (at, *byte)).nth(KEPT) {
            self.said.drain(..=at);
        }
    }

    fn around(&self, options: &Options) -> Around {
        let count = self.view.processes().len();
        let hosts = self.view.hosts().len();
        let waits = if self.heard == 0 { ", waiting for figures" } else { "" };
        let title = format!(
            "job {}: {count} processes on {hosts} hosts, every {:?}{waits}   (q ends)",
            self.number,
            options.period(),
        );
        let said = String::from_utf8_lossy(&self.said);
        let lines: Vec<&str> = said.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN)..];
        // What a program writes must not steer the terminal.
        let plain = |line: &&str| line.chars().filter(|letter| !letter.is_control()).collect();
        Around { title, said: last.iter().map(plain).collect() }
    }
}

/// Takes what comes within `limit`. False: the job has ended, which is no error.
fn hear(source: &mut Source, limit: Duration, job: &mut Job) -> Result<bool, String> {
    match source.next(limit)? {
        Part::Said(up) => job.take(up),
        Part::NotYet => {}
        Part::End => return Ok(false),
    }
    Ok(true)
}

fn look(
    options: &Options,
    source: &mut Source,
    job: &mut Job,
    screen: &mut Screen,
) -> Result<(), String> {
    let gone = |error: std::io::Error| format!("the terminal: {error}");
    let mut due = Instant::now();
    loop {
        if Instant::now() >= due {
            job.view.forget(job.began.elapsed(), options.period());
            screen.draw(&job.view, &options.kinds, &job.around(options)).map_err(gone)?;
            due = Instant::now() + options.period();
        }
        let left = due.saturating_duration_since(Instant::now()).min(KEYS);
        if !hear(source, left, job)? {
            return Ok(());
        }
        match screen.wish(Duration::ZERO).map_err(gone)? {
            Some(Wish::Quit) => return Ok(()),
            Some(Wish::Redraw) => due = Instant::now(),
            None => {}
        }
    }
}

/// `-once`, `-json` and `-svg`. Each line stands for a period: behind the first it comes with the
/// last of the figures, for which this process is awake anyway, or half a period late without them.
fn print(options: &Options, source: &mut Source, job: &mut Job) -> Result<(), String> {
    let (period, late) = (options.period(), options.period() / 2);
    let (mut due, mut printed) = (None::<Instant>, None);
    loop {
        let left = due.map_or(period, |due| (due + late).saturating_duration_since(Instant::now()));
        if !hear(source, left, job)? {
            return match (options.svg, due) {
                (_, None) => Err(format!("job {} has ended", job.number)),
                (true, Some(_)) => write(&picture(options, job)),
                (false, Some(_)) => Ok(()),
            };
        }
        let now = Instant::now();
        if due.is_none() && job.heard > 0 {
            // Rates need two.
            due = Some(now + period * if options.svg { PERIODS } else { 1 });
        }
        let Some(time) = due else { continue };
        let complete = printed.is_some_and(|printed| job.view.is_newer(printed));
        if now < time + late && !(complete && now + late >= time) {
            continue;
        }
        // Others may have figures come more often.
        due = Some(if time + period > now { time + period } else { now + period });
        printed = Some(job.began.elapsed());
        job.view.forget(job.began.elapsed(), options.period());
        let text = match (options.svg, options.json) {
            (true, _) => picture(options, job),
            (_, true) => shown::json(&job.view, job.number, job.began.elapsed().as_secs_f64()),
            (_, false) => shown::table(&job.view, &options.kinds),
        };
        write(&text)?;
        if options.once || options.svg {
            return Ok(());
        }
    }
}

fn picture(options: &Options, job: &Job) -> String {
    let (width, height) = PICTURE;
    let lines = job.view.processes().len() + job.view.hosts().len() + 2;
    let height = height.min(u16::try_from(lines).unwrap_or(height));
    let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width, height });
    draw::draw(&job.view, &options.kinds, Manner::default(), &job.around(options), &mut buffer);
    picture::svg(&buffer)
}

/// A reader that has gone has read enough.
fn write(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(format!("standard output: {error}")),
        Ok(()) => Ok(()),
    }
}
