//! Draws the results as charts.

use crate::bench::report::{BenchResult, format_value};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 330.0;
const LINE_HEIGHT: f64 = 20.0;
const RIGHT: f64 = 110.0;

/// An SVG with a bar for each row. The bars of one group have the same scale.
pub fn bar_chart(rows: &[BenchResult], header: &str) -> String {
    let mut body = String::new();
    let mut y = LINE_HEIGHT;
    for line in header.lines() {
        body += &format!("<text x=\"10\" y=\"{y:.0}\">{}</text>\n", escape_xml(line));
        y += LINE_HEIGHT;
    }
    let mut start = 0;
    while start < rows.len() {
        let is_in_group =
            |row: &BenchResult| row.bench == rows[start].bench && row.case == rows[start].case;
        let end = start + rows[start..].iter().take_while(|row| is_in_group(row)).count();
        let group = &rows[start..end];
        let title = format!("{}, {} ({})", group[0].bench, group[0].case, group[0].unit);
        y += LINE_HEIGHT;
        body +=
            &format!("<text x=\"10\" y=\"{y:.0}\" class=\"title\">{}</text>\n", escape_xml(&title));
        let max_value = group.iter().map(BenchResult::best).fold(f64::MIN_POSITIVE, f64::max);
        for row in group {
            y += LINE_HEIGHT;
            draw_bar(&mut body, row, y, max_value);
        }
        start = end;
    }
    let height = y + 2.0 * LINE_HEIGHT;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <style>.title{{font-weight:bold}} .own{{fill:#1f6f4a}} .other{{fill:#9aa5b1}} \
         .spread{{stroke:#333}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         {body}</svg>\n"
    )
}

/// Draws the best value as a bar, with a line from the best value to the median.
fn draw_bar(body: &mut String, row: &BenchResult, y: f64, max_value: f64) {
    let scale = (WIDTH - LEFT - RIGHT) / max_value;
    let is_score = row.contender.starts_with("libpm") || row.contender == "scrun";
    let class = if is_score { "own" } else { "other" };
    let (best, median) = (row.best(), row.samples.median());
    let length = (best * scale).max(1.0);
    let end = LEFT + (median * scale).min(WIDTH - LEFT - RIGHT);
    let line_y = y - 4.0;
    *body += &format!(
        "<text x=\"{:.0}\" y=\"{y:.0}\" text-anchor=\"end\">{}</text>\
         <rect x=\"{LEFT:.0}\" y=\"{:.0}\" width=\"{length:.1}\" height=\"13\" class=\"{class}\"/>\
         <line x1=\"{:.1}\" x2=\"{end:.1}\" y1=\"{line_y:.0}\" y2=\"{line_y:.0}\" class=\"spread\"/>\
         <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>\n",
        LEFT - 8.0,
        escape_xml(&row.contender),
        y - 11.0,
        LEFT + length,
        WIDTH - RIGHT + 10.0,
        format_value(best),
    );
}

/// An SVG with a curve for each series of points. Sizes double from left to right.
pub fn line_chart(
    title: &str,
    (x_label, y_label): (&str, &str),
    series: &[(&str, Vec<(f64, f64)>)],
) -> String {
    const HEIGHT: f64 = 420.0;
    const MARGIN: f64 = 60.0;
    let points = || series.iter().flat_map(|(_, points)| points);
    let (min_size, max_size) = points()
        .fold((f64::MAX, 1.0f64), |(low, high), (size, _)| (low.min(*size), high.max(*size)));
    let max_value = points().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let doublings = (max_size / min_size).log2().max(1.0);
    let x_of = |size: f64| MARGIN + (size / min_size).log2() / doublings * (WIDTH - MARGIN - RIGHT);
    let y_of = |value: f64| HEIGHT - MARGIN - value / max_value * (HEIGHT - 2.0 * MARGIN);
    let mut body = format!(
        "<text x=\"10\" y=\"20\" class=\"title\">{}</text>\n<text x=\"10\" y=\"40\">{}</text>\n",
        escape_xml(title),
        escape_xml(y_label),
    );
    for (size, _) in series.first().map(|(_, points)| points.as_slice()).unwrap_or_default() {
        let (label_x, label_y) = (x_of(*size), HEIGHT - MARGIN + 20.0);
        body += &format!(
            "<text x=\"{label_x:.0}\" y=\"{label_y:.0}\" text-anchor=\"middle\">{size}</text>\n"
        );
    }
    for quarter in 0..=4 {
        let value = max_value * f64::from(quarter) / 4.0;
        let (grid_y, end) = (y_of(value), WIDTH - RIGHT);
        body += &format!(
            "<line x1=\"{MARGIN}\" x2=\"{end}\" y1=\"{grid_y:.0}\" y2=\"{grid_y:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{grid_y:.0}\" text-anchor=\"end\">{}</text>\n",
            MARGIN - 6.0,
            format_value(value),
        );
    }
    for ((name, points), colour) in series.iter().zip(["#1f6f4a", "#c0392b", "#9aa5b1"]) {
        let line =
            points.iter().map(|(size, value)| format!("{:.1},{:.1}", x_of(*size), y_of(*value)));
        let line = line.collect::<Vec<_>>().join(" ");
        let end = points.last().map_or((0.0, 0.0), |(size, value)| (x_of(*size), y_of(*value)));
        body += &format!(
            "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>\n",
            end.0 + 8.0,
            end.1 + 4.0,
            escape_xml(name),
        );
    }
    let footer_y = HEIGHT - 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<style>.title{{font-weight:bold}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}\
         <text x=\"{:.0}\" y=\"{footer_y:.0}\" text-anchor=\"middle\">{}</text>\n</svg>\n",
        WIDTH / 2.0,
        escape_xml(x_label),
    )
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
