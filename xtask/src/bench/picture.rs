//! The result as a picture: bars, one group for each thing that was measured.

use crate::bench::figures::{Row, short};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 330.0;
const LINE: f64 = 20.0;
const RIGHT: f64 = 110.0;

/// An SVG with a bar for each row; bars of one group share a scale.
pub fn svg(rows: &[Row], head: &str) -> String {
    let mut body = String::new();
    let mut y = LINE;
    for line in head.lines() {
        body += &format!("<text x=\"10\" y=\"{y:.0}\">{}</text>\n", escaped(line));
        y += LINE;
    }
    let mut start = 0;
    while start < rows.len() {
        let same = |row: &Row| row.bench == rows[start].bench && row.what == rows[start].what;
        let end = start + rows[start..].iter().take_while(|row| same(row)).count();
        let group = &rows[start..end];
        let title = format!("{}, {} ({})", group[0].bench, group[0].what, group[0].unit);
        y += LINE;
        body +=
            &format!("<text x=\"10\" y=\"{y:.0}\" class=\"title\">{}</text>\n", escaped(&title));
        let longest = group.iter().map(Row::best).fold(f64::MIN_POSITIVE, f64::max);
        for row in group {
            y += LINE;
            bar(&mut body, row, y, longest);
        }
        start = end;
    }
    let height = y + 2.0 * LINE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <style>.title{{font-weight:bold}} .own{{fill:#1f6f4a}} .other{{fill:#9aa5b1}} \
         .spread{{stroke:#333}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         {body}</svg>\n"
    )
}

/// Best as a bar, best to median as a line on it.
fn bar(body: &mut String, row: &Row, y: f64, longest: f64) {
    let scale = (WIDTH - LEFT - RIGHT) / longest;
    let own = row.who.starts_with("libpm") || row.who == "scrun";
    let class = if own { "own" } else { "other" };
    let (best, median) = (row.best(), row.rounds.median());
    let length = (best * scale).max(1.0);
    let end = LEFT + (median * scale).min(WIDTH - LEFT - RIGHT);
    let middle = y - 4.0;
    *body += &format!(
        "<text x=\"{:.0}\" y=\"{y:.0}\" text-anchor=\"end\">{}</text>\
         <rect x=\"{LEFT:.0}\" y=\"{:.0}\" width=\"{length:.1}\" height=\"13\" class=\"{class}\"/>\
         <line x1=\"{:.1}\" x2=\"{end:.1}\" y1=\"{middle:.0}\" y2=\"{middle:.0}\" class=\"spread\"/>\
         <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>\n",
        LEFT - 8.0,
        escaped(&row.who),
        y - 11.0,
        LEFT + length,
        WIDTH - RIGHT + 10.0,
        short(best),
    );
}

/// An SVG with a curve for each series of points, sizes doubling to the right.
pub fn curves(title: &str, (x, y): (&str, &str), series: &[(&str, Vec<(f64, f64)>)]) -> String {
    const HEIGHT: f64 = 420.0;
    const EDGE: f64 = 60.0;
    let points = || series.iter().flat_map(|(_, points)| points);
    let (least, most) = points()
        .fold((f64::MAX, 1.0f64), |(least, most), (size, _)| (least.min(*size), most.max(*size)));
    let top = points().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let steps = (most / least).log2().max(1.0);
    let across = |size: f64| EDGE + (size / least).log2() / steps * (WIDTH - EDGE - RIGHT);
    let up = |value: f64| HEIGHT - EDGE - value / top * (HEIGHT - 2.0 * EDGE);
    let mut body = format!(
        "<text x=\"10\" y=\"20\" class=\"title\">{}</text>\n<text x=\"10\" y=\"40\">{}</text>\n",
        escaped(title),
        escaped(y),
    );
    for (size, _) in series.first().map(|(_, points)| points.as_slice()).unwrap_or_default() {
        let (at, foot) = (across(*size), HEIGHT - EDGE + 20.0);
        body +=
            &format!("<text x=\"{at:.0}\" y=\"{foot:.0}\" text-anchor=\"middle\">{size}</text>\n");
    }
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let (at, end) = (up(value), WIDTH - RIGHT);
        body += &format!(
            "<line x1=\"{EDGE}\" x2=\"{end}\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{at:.0}\" text-anchor=\"end\">{}</text>\n",
            EDGE - 6.0,
            short(value),
        );
    }
    for ((name, points), colour) in series.iter().zip(["#1f6f4a", "#c0392b", "#9aa5b1"]) {
        let line =
            points.iter().map(|(size, value)| format!("{:.1},{:.1}", across(*size), up(*value)));
        let line = line.collect::<Vec<_>>().join(" ");
        let end = points.last().map_or((0.0, 0.0), |(size, value)| (across(*size), up(*value)));
        body += &format!(
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>\n",
            end.0 + 8.0,
            end.1 + 4.0,
            escaped(name),
        );
    }
    let foot = HEIGHT - 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<style>.title{{font-weight:bold}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}\
         <text x=\"{:.0}\" y=\"{foot:.0}\" text-anchor=\"middle\">{}</text>\n</svg>\n",
        WIDTH / 2.0,
        escaped(x),
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
