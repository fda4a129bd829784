//! The picture: a line for each host and each of its processes, sorted by host; in each, for every
//! kind, a number, a bar that is the longer and redder the higher the value, and what it was in the
//! last periods. Pure: from the model to cells.

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use score_monitor::{History, Host, Kind, Process, View};

use super::shown;

/// Columns of the names, of a number, and of a bar at least.
const NAME: u16 = 14;
const NUMBER: u16 = 8;
const BAR: u16 = 3;
/// Columns of a kind from which half of the bar's place shows its history.
const WIDE: u16 = 24;
/// With so many times more processes than lines, hosts stand for theirs.
const CROWDED: usize = 4;

/// How the user wants to look at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manner {
    /// Hosts only, or also processes; none: as it fits.
    pub hosts_only: Option<bool>,
    /// Lines that are scrolled away.
    pub offset: usize,
}

/// What stands around the picture.
#[derive(Debug, Clone, Default)]
pub struct Around {
    /// Of the first line.
    pub title: String,
    /// Lines that the job has written to standard error, shown at the bottom.
    pub said: Vec<String>,
}

enum Row<'a> {
    Host(Host),
    Process(&'a Process),
}

/// Draws everything; gives how far can be scrolled.
pub fn draw(
    view: &View,
    kinds: &[Kind],
    manner: Manner,
    around: &Around,
    buffer: &mut Buffer,
) -> usize {
    let area = buffer.area;
    buffer.reset();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    buffer.set_stringn(area.x, area.y, &around.title, area.width.into(), bold);
    let said = (around.said.len() as u16).min(area.height / 4);
    let lines = usize::from(area.height.saturating_sub(2 + said));
    let rows = rows(view, manner.hosts_only.unwrap_or_else(|| is_crowded(view, lines)));
    let most = rows.len().saturating_sub(lines);
    let columns = columns(area, kinds.len());
    for (kind, column) in kinds.iter().zip(&columns) {
        let head = format!("{:>width$} {}", "", kind.name(), width = usize::from(NUMBER));
        let full = format!("{head} of {}/s", shown::short(view.full_comm()));
        let fits = *kind == Kind::Comm && full.len() < usize::from(column.width);
        let head = if fits { full } else { head };
        buffer.set_stringn(column.x, area.y + 1, head, column.width.into(), bold);
    }
    let several = view.processes().iter().any(|process| process.totals.element > 0);
    let shown = rows.iter().skip(manner.offset.min(most)).take(lines);
    for (y, row) in (area.y + 2..).zip(shown) {
        draw_row(view, row, several, (kinds, &columns), y, buffer);
    }
    let from = around.said.len() - usize::from(said);
    for (y, line) in (area.bottom() - said..).zip(&around.said[from..]) {
        buffer.set_stringn(area.x, y, line, area.width.into(), Style::new().fg(Color::DarkGray));
    }
    most
}

fn is_crowded(view: &View, lines: usize) -> bool {
    view.processes().len() > lines.saturating_mul(CROWDED)
}

fn rows(view: &View, hosts_only: bool) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let processes = if hosts_only { Vec::new() } else { view.processes() };
    let mut processes = processes.into_iter().peekable();
    for host in view.hosts() {
        let number = host.host;
        rows.push(Row::Host(host));
        while let Some(process) = processes.next_if(|process| process.totals.host <= number) {
            rows.push(Row::Process(process));
        }
    }
    rows
}

/// Where the kinds stand.
fn columns(area: Rect, count: usize) -> Vec<Rect> {
    let count = count.max(1) as u16;
    let width = area.width.saturating_sub(NAME) / count;
    (0..count).map(|at| Rect { x: area.x + NAME + at * width, width, ..area }).collect()
}

fn draw_row(
    view: &View,
    row: &Row<'_>,
    several: bool,
    (kinds, columns): (&[Kind], &[Rect]),
    y: u16,
    buffer: &mut Buffer,
) {
    let name = match row {
        Row::Host(host) => shown::host_name(host),
        Row::Process(process) => format!("  {}", shown::name(process, several)),
    };
    let style = match row {
        Row::Host(_) => Style::new().add_modifier(Modifier::BOLD),
        // The job did not run: what is shown was before.
        Row::Process(process) if !process.ran => Style::new().add_modifier(Modifier::DIM),
        Row::Process(_) => Style::new(),
    };
    let x = buffer.area.x;
    buffer.set_stringn(x, y, name, usize::from(NAME) - 1, style);
    for (kind, column) in kinds.iter().zip(columns) {
        let (number, share, history) = match row {
            Row::Host(host) => {
                (shown::of_host(view, host, *kind), view.host_share(host, *kind), None)
            }
            Row::Process(process) => {
                let number = shown::of_process(view, process, *kind);
                (number, view.share(process, *kind), Some(&process.history))
            }
        };
        let place = column.width.min(NUMBER);
        let number = format!("{number:>width$}", width = usize::from(place));
        buffer.set_stringn(column.x, y, number, place.into(), style);
        // The disk is the host's.
        if matches!((row, kind), (Row::Process(_), Kind::Disk)) {
            continue;
        }
        let room = column.width.saturating_sub(NUMBER + 2);
        let past = if column.width >= WIDE { room / 2 } else { 0 };
        let bar = Rect { x: column.x + NUMBER + 1, y, width: room - past, height: 1 };
        if bar.width >= BAR {
            draw_bar(share, bar, buffer);
        }
        if let Some(history) = history.filter(|_| past > 0) {
            let full = if *kind == Kind::Comm { view.full_comm() as f32 } else { 1.0 };
            let place = Rect { x: bar.right() + 1, width: past - 1, ..bar };
            draw_history(history, *kind, full, place, buffer);
        }
    }
}

/// From green over yellow to red.
fn heat(share: f32) -> Color {
    let part = |share: f32| (share.clamp(0.0, 1.0) * 220.0) as u8;
    Color::Rgb(part(share * 2.0), part(2.0 - share * 2.0), 0)
}

const FULL: &str = "█";
const EIGHTHS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", FULL];
const LEVELS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", FULL];

/// A whole cell has its colour behind, too: a font that lacks these signs shows it all the same.
fn fill(cell: &mut Cell, symbol: &str, color: Color) {
    cell.set_symbol(symbol).set_fg(color);
    if symbol == FULL {
        cell.set_bg(color);
    }
}

fn draw_bar(share: f32, place: Rect, buffer: &mut Buffer) {
    let eighths = (share.clamp(0.0, 1.0) * f32::from(place.width) * 8.0).round() as u16;
    for cell in 0..place.width {
        let filled = eighths.saturating_sub(cell * 8).min(8);
        let symbol = if filled == 0 { "·" } else { EIGHTHS[usize::from(filled) - 1] };
        let at = f32::from(cell) / f32::from(place.width.max(2) - 1);
        let color = if filled == 0 { Color::DarkGray } else { heat(at) };
        fill(&mut buffer[(place.x + cell, place.y)], symbol, color);
    }
}

fn draw_history(history: &History, kind: Kind, full: f32, place: Rect, buffer: &mut Buffer) {
    let values = history.last(kind, place.width.into());
    let first = place.right() - values.len() as u16;
    for (x, value) in (first..).zip(values) {
        let share = (value / full).clamp(0.0, 1.0);
        let level = (share * 7.0).round() as usize;
        fill(&mut buffer[(x, place.y)], LEVELS[level], heat(share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::sight::{Figures, HostFigures, NodeFigures};
    use std::time::{Duration, Instant};

    /// So many processes, `per_host` on each host, the later ones busier, after two periods.
    fn view(processes: u32, per_host: u32) -> View {
        let mut view = View::default();
        for second in 1..=2 {
            let node = |node| NodeFigures {
                node,
                host: node / per_host,
                at_ns: second * 1_000_000_000,
                watched_ns: second * 1_000_000,
                busy_ns: second * 1_000_000 * u64::from(node) / u64::from(processes - 1),
                ..NodeFigures::default()
            };
            let host = |host: u32| HostFigures {
                host,
                name: format!("comp{host}"),
                disk_kib: 0,
                disk_scale_kib: 100,
                memory_scale_kib: 1000,
            };
            let hosts = (0..processes.div_ceil(per_host)).map(host).collect();
            let figures = Figures { hosts, nodes: (0..processes).map(node).collect() };
            view.take(&figures, Duration::from_secs(second));
        }
        view
    }

    fn lines(
        view: &View,
        kinds: &[Kind],
        manner: Manner,
        size: (u16, u16),
    ) -> (Vec<String>, usize) {
        let mut buffer = Buffer::empty(Rect { x: 0, y: 0, width: size.0, height: size.1 });
        let around = Around { title: "job 7".into(), said: vec!["a line".into()] };
        let most = draw(view, kinds, manner, &around, &mut buffer);
        let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        ((0..size.1).map(line).collect(), most)
    }

    #[test]
    fn hosts_stand_above_their_processes_and_longer_bars_are_redder() {
        let view = view(4, 2);
        let (lines, most) = lines(&view, &[Kind::Load], Manner::default(), (80, 12));
        assert_eq!(most, 0);
        let starts = ["job 7", "  ", "comp0", "  0", "  1", "comp1", "  2", "  3", " "];
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{lines:#?}");
        }
        assert!(lines[3].contains(" 0% ·") && lines[7].contains("100% █"), "{lines:#?}");
        assert!(lines[11].starts_with("a line"), "{lines:#?}");
        assert_eq!((heat(0.0), heat(1.0)), (Color::Rgb(0, 220, 0), Color::Rgb(220, 0, 0)));
        assert_eq!(heat(0.5), Color::Rgb(220, 220, 0));
    }

    #[test]
    fn a_thousand_processes_are_shown_by_hosts_and_scrolled_quickly() {
        let view = view(1000, 20);
        let begin = Instant::now();
        let (first, most) = lines(&view, &Kind::ALL, Manner::default(), (120, 33));
        assert!(first[2].starts_with("comp0") && first[3].starts_with("comp1"), "{first:#?}");
        assert_eq!(most, 50 - 30);
        let end = Manner { offset: usize::MAX, ..Manner::default() };
        assert!(lines(&view, &Kind::ALL, end, (120, 33)).0[31].starts_with("comp49"));
        let all = Manner { hosts_only: Some(false), offset: 0 };
        let (first, most) = lines(&view, &Kind::ALL, all, (120, 33));
        assert!(first[3].starts_with("  0") && most == 1050 - 30, "{first:#?}");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_screen_of_any_size_will_do() {
        let view = view(9, 4);
        for size in [(0, 0), (1, 1), (3, 2), (15, 3), (40, 4), (300, 5), (79, 200)] {
            for kinds in [&Kind::ALL[..], &[Kind::Comm]] {
                let manner = Manner { hosts_only: None, offset: 3 };
                let _ = lines(&view, kinds, manner, size);
            }
        }
        let _ = lines(&View::default(), &Kind::ALL, Manner::default(), (80, 24));
    }
}
