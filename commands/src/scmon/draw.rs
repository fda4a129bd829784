//! Draws the display: a line for each host and each of its processes, sorted by host. For every
//! metric, a line has a number, a bar whose length and colour show the value, and the values of the
//! last periods. The functions are pure: they draw a model into cells.

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use score_monitor::{History, Host, JobView, Metric, Process};
use score_proto::ids::ElementIndex;

use super::format;

/// Width of the names and of a number in columns, and minimum width of a bar.
const NAME_WIDTH: u16 = 14;
const NUMBER_WIDTH: u16 = 8;
const MIN_BAR_WIDTH: u16 = 3;
/// Minimum columns of a metric for which half of the space of the bar shows the history.
const MIN_WIDTH_WITH_HISTORY: u16 = 24;
/// If there are this many times more processes than lines, only hosts are shown.
const COLLAPSE_TO_HOSTS_FACTOR: usize = 4;

/// The view that the user has selected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ViewSettings {
    /// Show only hosts, or also processes. `None`: depends on the size of the screen.
    pub hosts_only: Option<bool>,
    /// First visible line.
    pub offset: usize,
}

/// Text around the display.
#[derive(Debug, Clone, Default)]
pub struct FrameText {
    /// The first line.
    pub title: String,
    /// Lines that the job has written to standard error, shown at the bottom.
    pub stderr_lines: Vec<String>,
}

enum Row<'a> {
    Host(Host),
    Process(&'a Process),
}

/// Draws everything. Returns the maximum scroll offset.
pub fn draw(
    view: &JobView,
    kinds: &[Metric],
    settings: ViewSettings,
    frame_text: &FrameText,
    buffer: &mut Buffer,
) -> usize {
    let area = buffer.area;
    buffer.reset();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    buffer.set_stringn(area.x, area.y, &frame_text.title, area.width.into(), bold);
    let stderr_rows = (frame_text.stderr_lines.len() as u16).min(area.height / 4);
    let lines = usize::from(area.height.saturating_sub(2 + stderr_rows));
    let rows = rows(view, settings.hosts_only.unwrap_or_else(|| is_crowded(view, lines)));
    let max_offset = rows.len().saturating_sub(lines);
    let columns = columns(area, kinds.len());
    for (kind, column) in kinds.iter().zip(&columns) {
        let header = format!("{:>width$} {}", "", kind.name(), width = usize::from(NUMBER_WIDTH));
        let header_with_scale =
            format!("{header} of {}/s", format::abbreviate(view.comm_full_scale()));
        let fits = *kind == Metric::Comm && header_with_scale.len() < usize::from(column.width);
        let header = if fits { header_with_scale } else { header };
        buffer.set_stringn(column.x, area.y + 1, header, column.width.into(), bold);
    }
    let multi_element =
        view.processes().iter().any(|process| process.totals.element > ElementIndex::FIRST);
    let visible = rows.iter().skip(settings.offset.min(max_offset)).take(lines);
    for (y, row) in (area.y + 2..).zip(visible) {
        draw_row(view, row, multi_element, (kinds, &columns), y, buffer);
    }
    let first_line = frame_text.stderr_lines.len() - usize::from(stderr_rows);
    for (y, line) in (area.bottom() - stderr_rows..).zip(&frame_text.stderr_lines[first_line..]) {
        buffer.set_stringn(area.x, y, line, area.width.into(), Style::new().fg(Color::DarkGray));
    }
    max_offset
}

fn is_crowded(view: &JobView, lines: usize) -> bool {
    view.processes().len() > lines.saturating_mul(COLLAPSE_TO_HOSTS_FACTOR)
}

fn rows(view: &JobView, hosts_only: bool) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let processes = if hosts_only { Vec::new() } else { view.processes() };
    let mut processes = processes.into_iter().peekable();
    for host in view.hosts() {
        let host_number = host.host;
        rows.push(Row::Host(host));
        while let Some(process) = processes.next_if(|process| process.totals.host <= host_number) {
            rows.push(Row::Process(process));
        }
    }
    rows
}

/// Divides the area into a column for each metric.
fn columns(area: Rect, count: usize) -> Vec<Rect> {
    let count = count.max(1) as u16;
    let width = area.width.saturating_sub(NAME_WIDTH) / count;
    (0..count).map(|index| Rect { x: area.x + NAME_WIDTH + index * width, width, ..area }).collect()
}

fn draw_row(
    view: &JobView,
    row: &Row<'_>,
    multi_element: bool,
    (kinds, columns): (&[Metric], &[Rect]),
    y: u16,
    buffer: &mut Buffer,
) {
    let name = match row {
        Row::Host(host) => format::host_name(host),
        Row::Process(process) => format!("  {}", format::process_name(process, multi_element)),
    };
    let style = match row {
        Row::Host(_) => Style::new().add_modifier(Modifier::BOLD),
        // The job did not run in this period: the values are from an earlier one.
        Row::Process(process) if !process.ran => Style::new().add_modifier(Modifier::DIM),
        Row::Process(_) => Style::new(),
    };
    let x = buffer.area.x;
    buffer.set_stringn(x, y, name, usize::from(NAME_WIDTH) - 1, style);
    for (kind, column) in kinds.iter().zip(columns) {
        let (number, share, history) = match row {
            Row::Host(host) => {
                (format::host_value(view, host, *kind), view.host_share(host, *kind), None)
            }
            Row::Process(process) => {
                let number = format::process_value(view, process, *kind);
                (number, view.share(process, *kind), Some(&process.history))
            }
        };
        let number_width = column.width.min(NUMBER_WIDTH);
        let number = format!("{number:>width$}", width = usize::from(number_width));
        buffer.set_stringn(column.x, y, number, number_width.into(), style);
        // Disk usage is known only per host.
        if matches!((row, kind), (Row::Process(_), Metric::Disk)) {
            continue;
        }
        let free_width = column.width.saturating_sub(NUMBER_WIDTH + 2);
        let history_width = if column.width >= MIN_WIDTH_WITH_HISTORY { free_width / 2 } else { 0 };
        let bar = Rect {
            x: column.x + NUMBER_WIDTH + 1,
            y,
            width: free_width - history_width,
            height: 1,
        };
        if bar.width >= MIN_BAR_WIDTH {
            draw_bar(share, bar, buffer);
        }
        if let Some(history) = history.filter(|_| history_width > 0) {
            let full_scale =
                if *kind == Metric::Comm { view.comm_full_scale() as f32 } else { 1.0 };
            let area = Rect { x: bar.right() + 1, width: history_width - 1, ..bar };
            draw_history(history, *kind, full_scale, area, buffer);
        }
    }
}

/// The colour of a value: from green over yellow to red.
fn heat_color(share: f32) -> Color {
    let component = |share: f32| (share.clamp(0.0, 1.0) * 220.0) as u8;
    Color::Rgb(component(share * 2.0), component(2.0 - share * 2.0), 0)
}

const FULL_BLOCK: &str = "█";
const BAR_BLOCKS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", FULL_BLOCK];
const HISTORY_BLOCKS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", FULL_BLOCK];

/// Sets the symbol and colour of a cell. A full cell also gets its colour as background, so that it
/// is visible in fonts without these symbols.
fn fill(cell: &mut Cell, symbol: &str, color: Color) {
    cell.set_symbol(symbol).set_fg(color);
    if symbol == FULL_BLOCK {
        cell.set_bg(color);
    }
}

fn draw_bar(share: f32, area: Rect, buffer: &mut Buffer) {
    let eighths = (share.clamp(0.0, 1.0) * f32::from(area.width) * 8.0).round() as u16;
    for cell in 0..area.width {
        let filled = eighths.saturating_sub(cell * 8).min(8);
        let symbol = if filled == 0 { "·" } else { BAR_BLOCKS[usize::from(filled) - 1] };
        let position = f32::from(cell) / f32::from(area.width.max(2) - 1);
        let color = if filled == 0 { Color::DarkGray } else { heat_color(position) };
        fill(&mut buffer[(area.x + cell, area.y)], symbol, color);
    }
}

fn draw_history(history: &History, kind: Metric, full_scale: f32, area: Rect, buffer: &mut Buffer) {
    let values = history.last(kind, area.width.into());
    let first = area.right() - values.len() as u16;
    for (x, value) in (first..).zip(values) {
        let share = (value / full_scale).clamp(0.0, 1.0);
        let level = (share * 7.0).round() as usize;
        fill(&mut buffer[(x, area.y)], HISTORY_BLOCKS[level], heat_color(share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::JobHostId;
    use score_proto::observation::{HostMetrics, Metrics, NodeMetrics};
    use std::time::{Duration, Instant};

    /// A view of `processes` processes after two periods, with `per_host` on each host. Processes
    /// with higher numbers are busier.
    fn view(processes: u32, per_host: u32) -> JobView {
        let mut view = JobView::default();
        for second in 1..=2 {
            let node = |node| NodeMetrics {
                node,
                host: JobHostId(node / per_host),
                sampled_at_ns: second * 1_000_000_000,
                observed_ns: second * 1_000_000,
                busy_ns: second * 1_000_000 * u64::from(node) / u64::from(processes - 1),
                ..NodeMetrics::default()
            };
            let host = |host: u32| HostMetrics {
                host: JobHostId(host),
                name: format!("comp{host}"),
                disk_kib: 0,
                disk_scale_kib: 100,
                memory_scale_kib: 1000,
            };
            let hosts = (0..processes.div_ceil(per_host)).map(host).collect();
            let metrics = Metrics { hosts, nodes: (0..processes).map(node).collect() };
            view.apply_report(&metrics, Duration::from_secs(second));
        }
        view
    }

    fn lines(
        view: &JobView,
        kinds: &[Metric],
        settings: ViewSettings,
        size: (u16, u16),
    ) -> (Vec<String>, usize) {
        let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width: size.0, height: size.1 });
        let frame_text = FrameText { title: "job 7".into(), stderr_lines: vec!["a line".into()] };
        let max_offset = draw(view, kinds, settings, &frame_text, &mut buffer);
        let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        ((0..size.1).map(line).collect(), max_offset)
    }

    // Promise (monitors): Bars of busier processes are longer and redder; a thousand processes are
    // shown by hosts and can be scrolled.
    #[test]
    fn processes_are_listed_below_their_host_and_longer_bars_are_redder() {
        let view = view(4, 2);
        let (lines, max_offset) = lines(&view, &[Metric::Load], ViewSettings::default(), (80, 12));
        assert_eq!(max_offset, 0);
        let starts = ["job 7", "  ", "comp0", "  0", "  1", "comp1", "  2", "  3", " "];
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{lines:#?}");
        }
        assert!(lines[3].contains(" 0% ·") && lines[7].contains("100% █"), "{lines:#?}");
        assert!(lines[11].starts_with("a line"), "{lines:#?}");
        assert_eq!(
            (heat_color(0.0), heat_color(1.0)),
            (Color::Rgb(0, 220, 0), Color::Rgb(220, 0, 0))
        );
        assert_eq!(heat_color(0.5), Color::Rgb(220, 220, 0));
    }

    // Promise of `processes_are_listed_below_their_host_and_longer_bars_are_redder`.
    #[test]
    fn a_thousand_processes_are_shown_by_hosts_and_scrolled_quickly() {
        let view = view(1000, 20);
        let begin = Instant::now();
        let (first, max_offset) = lines(&view, &Metric::ALL, ViewSettings::default(), (120, 33));
        assert!(first[2].starts_with("comp0") && first[3].starts_with("comp1"), "{first:#?}");
        assert_eq!(max_offset, 50 - 30);
        let end = ViewSettings { offset: usize::MAX, ..ViewSettings::default() };
        assert!(lines(&view, &Metric::ALL, end, (120, 33)).0[31].starts_with("comp49"));
        let all_processes = ViewSettings { hosts_only: Some(false), offset: 0 };
        let (first, max_offset) = lines(&view, &Metric::ALL, all_processes, (120, 33));
        assert!(first[3].starts_with("  0") && max_offset == 1050 - 30, "{first:#?}");
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        let view = view(9, 4);
        for size in [(0, 0), (1, 1), (3, 2), (15, 3), (40, 4), (300, 5), (79, 200)] {
            for kinds in [&Metric::ALL[..], &[Metric::Comm]] {
                let settings = ViewSettings { hosts_only: None, offset: 3 };
                let _ = lines(&view, kinds, settings, size);
            }
        }
        let _ = lines(&JobView::default(), &Metric::ALL, ViewSettings::default(), (80, 24));
    }
}
