//! `scmon`: shows the activity of a job's processes (manual 3.5.3) as bars on a terminal, as a
//! table, or as a line of JSON for each period.

mod draw;
mod format;
mod options;
mod screen;
mod source;
mod svg;

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use score_monitor::JobView;
use score_proto::ids::JobId;
use score_proto::observation::MonitorMessage;

use crate::scored_client::Reply;
use draw::{FrameText, ViewSettings};
pub use options::ScmonOptions;
use screen::{Screen, UserAction};
use source::MetricsSource;

/// The text of `-help`.
pub const USAGE: &str = "\
usage: scmon [options] JOB
  Shows the activity of a job's processes, sorted by host. Operators may watch any job, and other
  users their own jobs.
  scrun -monitor=TYPE starts scmon for the job that it runs.
  -show TYPE      load (busy, by the idle flag), comm (messages), memory, disk, usr0, usr1 (what the
                  program has set), all (the first four; the default) or ALL; the option may
                  be given several times
  -period MS      time between two updates: 50 to 10000, default 500
  -once           print a table once
  -svg            print the screen as SVG, after 40 periods or at the end of the job
  -json           print a line for each period, for programs; with -once one line
  -socket PATH    socket of the scored of this host; default: SCORED_SOCKET, else
                  /run/scored/scored.sock
  -help           this text
  Keys: q quits, arrows and page keys scroll, h shows hosts only, p also processes.
";

/// Interval between two polls of the keyboard.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Lines of standard error that are kept until the terminal is restored, and number of lines that
/// are shown.
const MAX_STDERR_LINES: usize = 1000;
const SHOWN_STDERR_LINES: usize = 4;
/// Periods before the SVG is written, and its size in columns and lines.
const PERIODS_BEFORE_SVG: u32 = 40;
const SVG_CELLS: (u16, u16) = (120, 30);

/// Shows a job until it ends or the user quits.
///
/// # Errors
/// One line with the reason.
pub fn run(options: &ScmonOptions) -> Result<(), String> {
    let mut source = MetricsSource::open(options)?;
    let mut job = MonitoredJob::new(options);
    if options.once || options.json || options.svg {
        return print(options, &mut source, &mut job);
    }
    let mut screen = Screen::open()?;
    let result = run_interactive(options, &mut source, &mut job, &mut screen);
    drop(screen);
    let mut err = std::io::stderr().lock();
    // If standard error is closed, the lines are lost.
    let _ = err.write_all(&job.stderr).and_then(|()| err.flush());
    result
}

/// The state of the monitored job.
struct MonitoredJob {
    number: JobId,
    started_at: Instant,
    view: JobView,
    /// Bytes that the job has written to standard error, if standard error is the terminal of
    /// scmon.
    stderr: Vec<u8>,
    /// Number of messages with metrics.
    metrics_count: u64,
}

impl MonitoredJob {
    fn new(options: &ScmonOptions) -> Self {
        let number = options.job.unwrap_or(JobId(0));
        let (view, stderr) = (JobView::default(), Vec::new());
        Self { number, started_at: Instant::now(), view, stderr, metrics_count: 0 }
    }

    fn on_message(&mut self, message: MonitorMessage) {
        match message {
            MonitorMessage::Metrics(metrics) => {
                self.metrics_count += 1;
                self.view.apply_report(&metrics, self.started_at.elapsed());
            }
            MonitorMessage::Stderr(bytes) => self.add_stderr(&bytes),
        }
    }

    fn add_stderr(&mut self, bytes: &[u8]) {
        self.stderr.extend_from_slice(bytes);
        let ends = self.stderr.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        if let Some((index, _)) = ends.map(|(index, byte)| (index, *byte)).nth(MAX_STDERR_LINES) {
            self.stderr.drain(..=index);
        }
    }

    fn frame_text(&self, options: &ScmonOptions) -> FrameText {
        let count = self.view.processes().len();
        let hosts = self.view.hosts().len();
        let waiting_note = if self.metrics_count == 0 { ", waiting for metrics" } else { "" };
        let title = format!(
            "job {}: {count} processes on {hosts} hosts, every {:?}{waiting_note}   (q ends)",
            self.number,
            options.period(),
        );
        let stderr = String::from_utf8_lossy(&self.stderr);
        let lines: Vec<&str> = stderr.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN_STDERR_LINES)..];
        // The output of a program must not control the terminal.
        let plain = |line: &&str| line.chars().filter(|letter| !letter.is_control()).collect();
        FrameText { title, stderr_lines: last.iter().map(plain).collect() }
    }
}

/// Handles a reply that arrives within `timeout`. Returns false if the job has ended, which is not
/// an error.
fn receive_reports(
    source: &mut MetricsSource,
    timeout: Duration,
    job: &mut MonitoredJob,
) -> Result<bool, String> {
    match source.next_reply(timeout)? {
        Reply::Answer(message) => job.on_message(message),
        Reply::Notice(text) => job.add_stderr(format!("{text}\n").as_bytes()),
        Reply::Pending => {}
        Reply::End => return Ok(false),
    }
    Ok(true)
}

fn run_interactive(
    options: &ScmonOptions,
    source: &mut MetricsSource,
    job: &mut MonitoredJob,
    screen: &mut Screen,
) -> Result<(), String> {
    let terminal_error = |error: std::io::Error| format!("the terminal: {error}");
    let mut next_draw_at = Instant::now();
    loop {
        if Instant::now() >= next_draw_at {
            job.view.drop_stale(job.started_at.elapsed(), options.period());
            screen
                .draw(&job.view, &options.kinds, &job.frame_text(options))
                .map_err(terminal_error)?;
            next_draw_at = Instant::now() + options.period();
        }
        let left = next_draw_at.saturating_duration_since(Instant::now()).min(KEY_POLL_INTERVAL);
        if !receive_reports(source, left, job)? {
            return Ok(());
        }
        match screen.next_action(Duration::ZERO).map_err(terminal_error)? {
            Some(UserAction::Quit) => return Ok(()),
            Some(UserAction::Redraw) => next_draw_at = Instant::now(),
            None => {}
        }
    }
}

/// Prints the output of `-once`, `-json` and `-svg`, once for each period. After the first period,
/// scmon prints when the last metrics of the period arrive, because this process is awake then. If
/// they do not arrive, scmon prints half a period late.
fn print(
    options: &ScmonOptions,
    source: &mut MetricsSource,
    job: &mut MonitoredJob,
) -> Result<(), String> {
    let (period, grace) = (options.period(), options.period() / 2);
    let (mut next_print_at, mut printed_at) = (None::<Instant>, None);
    loop {
        let left = next_print_at.map_or(period, |next_print_at| {
            (next_print_at + grace).saturating_duration_since(Instant::now())
        });
        if !receive_reports(source, left, job)? {
            return match (options.svg, next_print_at) {
                (_, None) => Err(format!("job {} has ended", job.number)),
                (true, Some(_)) => write_stdout(&render_svg(options, job)),
                (false, Some(_)) => Ok(()),
            };
        }
        let now = Instant::now();
        if next_print_at.is_none() && job.metrics_count > 0 {
            // Rates need two samples.
            next_print_at = Some(now + period * if options.svg { PERIODS_BEFORE_SVG } else { 1 });
        }
        let Some(time) = next_print_at else { continue };
        let complete = printed_at.is_some_and(|printed_at| job.view.is_complete_since(printed_at));
        if now < time + grace && !(complete && now + grace >= time) {
            continue;
        }
        // Another monitor may cause metrics to arrive more often.
        next_print_at = Some(if time + period > now { time + period } else { now + period });
        printed_at = Some(job.started_at.elapsed());
        job.view.drop_stale(job.started_at.elapsed(), options.period());
        let text = match (options.svg, options.json) {
            (true, _) => render_svg(options, job),
            (_, true) => {
                format::json(&job.view, job.number, job.started_at.elapsed().as_secs_f64())
            }
            (_, false) => format::table(&job.view, &options.kinds),
        };
        write_stdout(&text)?;
        if options.once || options.svg {
            return Ok(());
        }
    }
}

fn render_svg(options: &ScmonOptions, job: &MonitoredJob) -> String {
    let (width, height) = SVG_CELLS;
    let lines = job.view.processes().len() + job.view.hosts().len() + 2;
    let height = height.min(u16::try_from(lines).unwrap_or(height));
    let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width, height });
    draw::draw(
        &job.view,
        &options.kinds,
        ViewSettings::default(),
        &job.frame_text(options),
        &mut buffer,
    );
    svg::render(&buffer)
}

/// Writes to standard output. Exits if the reader has closed it.
fn write_stdout(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(format!("standard output: {error}")),
        Ok(()) => Ok(()),
    }
}
