//! The results of measurements, with their commands and comparisons, and their output formats.

use crate::run::source_root;

/// The values of several rounds of one measurement.
#[derive(Debug, Clone, Default)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// The smallest value.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest value.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The middle value.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Divides these values by the values of `other`, round by round.
    pub fn ratio_to(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(value, other)| value / other).collect())
    }
}

/// Whether small or large values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Lower values are better, for example times.
    LowerIsBetter,
    /// Higher values are better, for example rates.
    HigherIsBetter,
}

/// A comparison with another contender in the same run. The machine's speed may change between
/// rounds. Therefore the judged ratio is the median of the rounds' ratios, not a ratio of values
/// from different rounds.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The name of the other contender.
    pub other: String,
    /// The median of the rounds' ratios of this value to the other value.
    pub ratio: f64,
    /// The best value divided by the other contender's best value.
    pub best_ratio: f64,
    /// The smallest and the largest ratio of a round.
    pub ratio_range: (f64, f64),
    /// The target of the ratio, if there is one.
    pub target: Option<f64>,
}

impl Comparison {
    /// Compares two rows round by round.
    pub fn new(subject: &BenchResult, other: &BenchResult, target: Option<f64>) -> Self {
        let ratios = subject.samples.ratio_to(&other.samples);
        Self {
            other: other.contender.clone(),
            ratio: ratios.median(),
            best_ratio: subject.best() / other.best(),
            ratio_range: (ratios.min(), ratios.max()),
            target,
        }
    }
}

/// One line of the result.
#[derive(Debug, Clone)]
pub struct BenchResult {
    /// The name of the measurement.
    pub bench: &'static str,
    /// The case, for example the size.
    pub case: String,
    /// The name of the contender.
    pub contender: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// Whether small or large values are better.
    pub direction: Direction,
    /// The values, round by round.
    pub samples: Samples,
    /// The target of the median, if there is one.
    pub target: Option<f64>,
    /// Comparisons with others.
    pub comparisons: Vec<Comparison>,
    /// The command that repeats the measurement.
    pub command_line: String,
}

impl BenchResult {
    /// Makes a row without target and comparisons.
    pub fn new(
        bench: &'static str,
        case: &str,
        contender: &str,
        (unit, direction): (&'static str, Direction),
        samples: Vec<f64>,
        command_line: &str,
    ) -> Self {
        Self {
            bench,
            case: case.into(),
            contender: contender.into(),
            unit,
            direction,
            samples: Samples(samples),
            target: None,
            comparisons: Vec::new(),
            command_line: command_line.into(),
        }
    }

    /// The value of the best round.
    pub fn best(&self) -> f64 {
        match self.direction {
            Direction::LowerIsBetter => self.samples.min(),
            Direction::HigherIsBetter => self.samples.max(),
        }
    }

    fn verdict(&self, value: f64, target: Option<f64>) -> &'static str {
        match (target, self.direction) {
            (None, _) => "",
            (Some(target), Direction::LowerIsBetter) if value <= target => "met",
            (Some(target), Direction::HigherIsBetter) if value >= target => "met",
            (Some(_), _) => "MISSED",
        }
    }

    /// "aim <= 1.4: met", or an empty text if there is no target.
    fn target_text(&self, value: f64, target: Option<f64>) -> String {
        let sign = if self.direction == Direction::LowerIsBetter { "<=" } else { ">=" };
        let describe = |target| {
            format!(" (aim {sign} {}: {})", format_value(target), self.verdict(value, Some(target)))
        };
        target.map(describe).unwrap_or_default()
    }

    /// "; aim ≤ 1.4: met", or an empty text if there is no target.
    fn markdown_aim(&self, value: f64, target: Option<f64>) -> String {
        let sign = if self.direction == Direction::LowerIsBetter { "≤" } else { "≥" };
        let describe = |target: f64| {
            let verdict = match self.verdict(value, Some(target)) {
                "met" => "met",
                _ => "**missed**",
            };
            match target {
                1e6.. => format!("; aim {sign} {}M: {verdict}", target / 1e6),
                _ => format!("; aim {sign} {target}: {verdict}"),
            }
        };
        target.map(describe).unwrap_or_default()
    }
}

/// Formats a value with all significant digits.
pub fn format_value(value: f64) -> String {
    match value.abs() {
        size if size >= 1e7 => format!("{:.2}M", value / 1e6),
        size if size >= 1e4 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 0.01 || size == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.6}"),
    }
}

/// Formats a ratio. Small ratios have more digits.
fn format_ratio(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

/// Formats the rows as a table with their comparisons, followed by the commands.
pub fn format_table(rows: &[BenchResult]) -> String {
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        if index == 0 || rows[index - 1].bench != row.bench {
            text += &format!("\n{} ({})\n", row.bench, row.unit);
            text += &format!("  {:<34}{:>12}{:>12}{:>12}\n", "", "best", "median", "worst");
        }
        let worst = match row.direction {
            Direction::LowerIsBetter => row.samples.max(),
            Direction::HigherIsBetter => row.samples.min(),
        };
        let name = format!("{:<18} {}", row.case, row.contender);
        text += &format!(
            "  {name:<34}{:>12}{:>12}{:>12}{}\n",
            format_value(row.best()),
            format_value(row.samples.median()),
            format_value(worst),
            row.target_text(row.samples.median(), row.target),
        );
        for Comparison { other, ratio, best_ratio, ratio_range: (low, high), target } in
            &row.comparisons
        {
            let range_text = format!("rounds {low:.2} to {high:.2}, best by best {best_ratio:.2}");
            let target_text = row.target_text(*ratio, *target);
            text += &format!("      {ratio:.2} x {other}: {range_text}{target_text}\n");
        }
    }
    text += "\nby these commands:\n";
    let mut seen: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| !row.command_line.is_empty()) {
        if !seen.contains(&row.command_line.as_str()) {
            seen.push(&row.command_line);
            text += &format!("  {}\n", row.command_line);
        }
    }
    text
}

/// Formats the rows as a table of Markdown for docs/benchmarks.md, with one line for each row. A
/// second table has the commands, because several rows often share a command.
pub fn format_markdown(rows: &[BenchResult]) -> String {
    let mut text = String::from(
        "| what | who | median (range) | ratio (range) | command |\n|---|---|---|---|---|\n",
    );
    let mut commands: Vec<&str> = Vec::new();
    for row in rows {
        let samples = &row.samples;
        let [median, low, high] =
            [samples.median(), samples.min(), samples.max()].map(format_value);
        let aim = row.markdown_aim(samples.median(), row.target);
        let value = format!("{median} ({low} to {high}) {}{aim}", row.unit);
        let describe = |comparison: &Comparison| {
            let Comparison { other, ratio, ratio_range: (low, high), target, .. } = comparison;
            let aim = row.markdown_aim(*ratio, *target);
            let [ratio, low, high] = [*ratio, *low, *high].map(format_ratio);
            format!("{ratio} × {other} ({low} to {high}){aim}")
        };
        let ratios: Vec<String> = row.comparisons.iter().map(describe).collect();
        let number = match row.command_line.as_str() {
            "" => String::new(),
            line => {
                let known = commands.iter().position(|known| *known == line);
                let index = known.unwrap_or_else(|| {
                    commands.push(line);
                    commands.len() - 1
                });
                (index + 1).to_string()
            }
        };
        text += &format!(
            "| {}, {} | {} | {value} | {} | {number} |\n",
            row.bench,
            row.case,
            row.contender,
            ratios.join("<br>"),
        );
    }
    text += "\n| | command |\n|---|---|\n";
    // The document must not name the directories of the machine that wrote it.
    let root = format!("{}/", source_root().display());
    for (index, command) in commands.iter().enumerate() {
        let line = command.replace(&root, "").replace('|', "\\|");
        text += &format!("| {} | `{line}` |\n", index + 1);
    }
    text
}

/// Replaces or adds these sections in the document. Each is the name of a benchmark and its text.
/// Other sections stay. All sections are put in the order of `order`.
pub fn update_sections(document: &str, sections: &[(&str, String)], order: &[&str]) -> String {
    let mut parts = document.split("\n## ");
    let mut text = parts.next().unwrap_or_default().trim_end().to_owned() + "\n";
    let old: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('\n')).collect();
    for name in order {
        let new = sections.iter().find(|(section, _)| section == name);
        let kept = old.iter().find(|(section, _)| section == name);
        let body = new.map(|(_, body)| body.as_str()).or(kept.map(|(_, body)| *body));
        if let Some(body) = body {
            text += &format!("\n## {name}\n\n{}\n", body.trim());
        }
    }
    text
}

/// Formats the rows as CSV.
pub fn format_csv(rows: &[BenchResult]) -> String {
    let mut text =
        String::from("bench,what,who,unit,best,median,least,most,aim,verdict,beside,command\n");
    for row in rows {
        let mut comparisons_text = String::new();
        for Comparison { other, ratio, best_ratio, ratio_range: (low, high), target } in
            &row.comparisons
        {
            let verdict = row.verdict(*ratio, *target);
            let values = format!("{ratio:.3} [{low:.3}..{high:.3}, best {best_ratio:.3}]");
            comparisons_text += &format!("{values} x {other} {verdict};");
        }
        let target = row.target.map(|aim| aim.to_string()).unwrap_or_default();
        let values = [row.best(), row.samples.median(), row.samples.min(), row.samples.max()]
            .map(|value| format!("{value:.3}"));
        let words = [row.bench, &row.case, &row.contender, row.unit].map(quote_csv);
        text += &format!(
            "{},{},{target},{},{},{}\n",
            words.join(","),
            values.join(","),
            row.verdict(row.samples.median(), row.target),
            quote_csv(&comparisons_text),
            quote_csv(&row.command_line),
        );
    }
    text
}

fn quote_csv(word: &str) -> String {
    format!("\"{}\"", word.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(samples: &[f64], direction: Direction) -> BenchResult {
        BenchResult::new("bench", "what", "who", ("ns", direction), samples.to_vec(), "say \"x\"")
    }

    #[test]
    fn best_follows_the_direction() {
        assert_eq!(row(&[3.0, 1.0, 2.0], Direction::LowerIsBetter).best(), 1.0);
        assert_eq!(row(&[3.0, 1.0, 2.0], Direction::HigherIsBetter).best(), 3.0);
        assert_eq!(row(&[3.0, 1.0, 2.0], Direction::HigherIsBetter).samples.median(), 2.0);
    }

    #[test]
    fn the_document_names_no_directory_of_the_machine() {
        let mut result = row(&[1.0], Direction::LowerIsBetter);
        result.command_line = format!("run < {}/bench-results/in", source_root().display());
        let text = format_markdown(&[result]);
        assert!(text.contains("`run < bench-results/in`"), "{text}");
    }

    #[test]
    fn a_line_of_the_document_has_ratios_aim_and_the_number_of_its_command() {
        let mut subject = row(&[2.0, 4.0, 3.0], Direction::LowerIsBetter);
        let mut other = row(&[1.0, 1.0, 1.5], Direction::LowerIsBetter);
        other.contender = "floor".into();
        other.command_line = "other".into();
        other.target = Some(2.0);
        subject.comparisons.push(Comparison::new(&subject, &other, Some(1.4)));
        subject.comparisons.push(Comparison::new(&subject, &other, None));
        let text = format_markdown(&[subject.clone(), other, subject]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let first = "| bench, what | who | 3.000 (2.000 to 4.000) ns | 2.00 × floor (2.00 to 4.00)\
                     ; aim ≤ 1.4: **missed**<br>2.00 × floor (2.00 to 4.00) | 1 |";
        let second = "| bench, what | floor | 1.000 (1.000 to 1.500) ns; aim ≤ 2: met |  | 2 |";
        let commands = ["", "| | command |", "|---|---|", "| 1 | `say \"x\"` |", "| 2 | `other` |"];
        assert_eq!(lines[..3], [first, second, first]);
        assert_eq!(lines[3..], commands);
    }

    #[test]
    fn sections_of_a_document_are_replaced_and_others_kept() {
        let document = "# Title\n\nText.\n\n## b\n\nold b\n\n## c\n\nold c\n";
        let order = ["a", "b", "c"];
        let new = [("a", "new a".to_owned()), ("b", "new b\n".to_owned())];
        let expected = "# Title\n\nText.\n\n## a\n\nnew a\n\n## b\n\nnew b\n\n## c\n\nold c\n";
        let updated = update_sections(document, &new, &order);
        assert_eq!(updated, expected);
        assert_eq!(update_sections(&updated, &new, &order), expected);
    }

    #[test]
    fn a_missed_target_is_marked_in_table_and_csv() {
        let mut subject = row(&[2.0, 4.0, 3.0], Direction::LowerIsBetter);
        let mut other = row(&[1.0, 1.0, 1.5], Direction::LowerIsBetter);
        other.contender = "floor".into();
        subject.comparisons.push(Comparison::new(&subject, &other, Some(1.4)));
        assert_eq!(subject.comparisons[0].ratio_range, (2.0, 4.0));
        let table_text = format_table(&[subject.clone()]);
        let line = "2.00 x floor: rounds 2.00 to 4.00, best by best 2.00 (aim <= 1.400: MISSED)";
        assert!(table_text.contains(line), "{table_text}");
        let text = format_csv(&[subject]);
        assert!(text.contains("2.000 [2.000..4.000, best 2.000] x floor MISSED;"), "{text}");
        assert!(text.ends_with("\"say \"\"x\"\"\"\n"), "{text}");
    }
}
