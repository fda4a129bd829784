//! What was measured, by whom, by which command, and how it compares.

/// Several rounds of one measurement.
#[derive(Debug, Clone, Default)]
pub struct Rounds(pub Vec<f64>);

impl Rounds {
    /// The smallest.
    pub fn least(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest.
    pub fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The one in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Round by round, this by the other.
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(own, other)| own / other).collect())
    }
}

/// Whether small or large figures are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Times.
    Less,
    /// Rates.
    More,
}

/// A comparison inside one run. The machine's own speed may change between rounds, so the judged
/// ratio is the median of the rounds' ratios, not the ratio of figures from different rounds.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// With what.
    pub with: String,
    /// Own by other: the median of the rounds.
    pub ratio: f64,
    /// The best figure by the other's best.
    pub best: f64,
    /// The smallest and the largest ratio of a round.
    pub spread: (f64, f64),
    /// The ratio that is aimed at.
    pub aim: Option<f64>,
}

impl Comparison {
    /// Compares two rows round by round.
    pub fn of(own: &Row, other: &Row, aim: Option<f64>) -> Self {
        let each = own.rounds.over(&other.rounds);
        Self {
            with: other.who.clone(),
            ratio: each.median(),
            best: own.best() / other.best(),
            spread: (each.least(), each.most()),
            aim,
        }
    }
}

/// One line of the result.
#[derive(Debug, Clone)]
pub struct Row {
    /// Which measurement.
    pub bench: &'static str,
    /// What exactly, such as the size.
    pub what: String,
    /// Whose figure.
    pub who: String,
    /// Its unit.
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Better,
    /// The figures, round by round.
    pub rounds: Rounds,
    /// The bound that the median itself aims at.
    pub aim: Option<f64>,
    /// Comparisons with others.
    pub beside: Vec<Comparison>,
    /// How to get it again.
    pub command: String,
}

impl Row {
    /// A row without aim and comparisons.
    pub fn new(
        bench: &'static str,
        what: &str,
        who: &str,
        (unit, better): (&'static str, Better),
        rounds: Vec<f64>,
        command: &str,
    ) -> Self {
        Self {
            bench,
            what: what.into(),
            who: who.into(),
            unit,
            better,
            rounds: Rounds(rounds),
            aim: None,
            beside: Vec::new(),
            command: command.into(),
        }
    }

    /// The best round.
    pub fn best(&self) -> f64 {
        match self.better {
            Better::Less => self.rounds.least(),
            Better::More => self.rounds.most(),
        }
    }

    fn verdict(&self, figure: f64, aim: Option<f64>) -> &'static str {
        match (aim, self.better) {
            (None, _) => "",
            (Some(aim), Better::Less) if figure <= aim => "met",
            (Some(aim), Better::More) if figure >= aim => "met",
            (Some(_), _) => "MISSED",
        }
    }

    /// "aim <= 1.4: met", or nothing.
    fn aim_words(&self, figure: f64, aim: Option<f64>) -> String {
        let sign = if self.better == Better::Less { "<=" } else { ">=" };
        let words =
            |aim| format!(" (aim {sign} {}: {})", short(aim), self.verdict(figure, Some(aim)));
        aim.map(words).unwrap_or_default()
    }
}

/// A figure with as many digits as tell something.
pub fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 1e7 => format!("{:.2}M", figure / 1e6),
        size if size >= 1e4 => format!("{figure:.0}"),
        size if size >= 100.0 => format!("{figure:.1}"),
        size if size >= 0.01 || size == 0.0 => format!("{figure:.3}"),
        _ => format!("{figure:.6}"),
    }
}

/// The rows as a table with their comparisons, then the commands.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        if number == 0 || rows[number - 1].bench != row.bench {
            text += &format!("\n{} ({})\n", row.bench, row.unit);
            text += &format!("  {:<34}{:>12}{:>12}{:>12}\n", "", "best", "median", "worst");
        }
        let worst = match row.better {
            Better::Less => row.rounds.most(),
            Better::More => row.rounds.least(),
        };
        let name = format!("{:<18} {}", row.what, row.who);
        text += &format!(
            "  {name:<34}{:>12}{:>12}{:>12}{}\n",
            short(row.best()),
            short(row.rounds.median()),
            short(worst),
            row.aim_words(row.rounds.median(), row.aim),
        );
        for Comparison { with, ratio, best, spread: (low, high), aim } in &row.beside {
            let spread = format!("rounds {low:.2} to {high:.2}, best by best {best:.2}");
            let aim = row.aim_words(*ratio, *aim);
            text += &format!("      {ratio:.2} x {with}: {spread}{aim}\n");
        }
    }
    text += "\nby these commands:\n";
    let mut seen: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| !row.command.is_empty()) {
        if !seen.contains(&row.command.as_str()) {
            seen.push(&row.command);
            text += &format!("  {}\n", row.command);
        }
    }
    text
}

/// The rows as CSV.
pub fn csv(rows: &[Row]) -> String {
    let mut text =
        String::from("bench,what,who,unit,best,median,least,most,aim,verdict,beside,command\n");
    for row in rows {
        let mut beside = String::new();
        for Comparison { with, ratio, best, spread: (low, high), aim } in &row.beside {
            let verdict = row.verdict(*ratio, *aim);
            let figures = format!("{ratio:.3} [{low:.3}..{high:.3}, best {best:.3}]");
            beside += &format!("{figures} x {with} {verdict};");
        }
        let aim = row.aim.map(|aim| aim.to_string()).unwrap_or_default();
        let figures = [row.best(), row.rounds.median(), row.rounds.least(), row.rounds.most()]
            .map(|figure| format!("{figure:.3}"));
        let words = [row.bench, &row.what, &row.who, row.unit].map(quoted);
        text += &format!(
            "{},{},{aim},{},{},{}\n",
            words.join(","),
            figures.join(","),
            row.verdict(row.rounds.median(), row.aim),
            quoted(&beside),
            quoted(&row.command),
        );
    }
    text
}

fn quoted(word: &str) -> String {
    format!("\"{}\"", word.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rounds: &[f64], better: Better) -> Row {
        Row::new("bench", "what", "who", ("ns", better), rounds.to_vec(), "say \"x\"")
    }

    #[test]
    fn best_follows_the_direction() {
        assert_eq!(row(&[3.0, 1.0, 2.0], Better::Less).best(), 1.0);
        assert_eq!(row(&[3.0, 1.0, 2.0], Better::More).best(), 3.0);
        assert_eq!(row(&[3.0, 1.0, 2.0], Better::More).rounds.median(), 2.0);
    }

    #[test]
    fn a_missed_aim_is_said_in_table_and_csv() {
        let mut own = row(&[2.0, 4.0, 3.0], Better::Less);
        let mut other = row(&[1.0, 1.0, 1.5], Better::Less);
        other.who = "floor".into();
        own.beside.push(Comparison::of(&own, &other, Some(1.4)));
        assert_eq!(own.beside[0].spread, (2.0, 4.0));
        let told = table(&[own.clone()]);
        let line = "2.00 x floor: rounds 2.00 to 4.00, best by best 2.00 (aim <= 1.400: MISSED)";
        assert!(told.contains(line), "{told}");
        let text = csv(&[own]);
        assert!(text.contains("2.000 [2.000..4.000, best 2.000] x floor MISSED;"), "{text}");
        assert!(text.ends_with("\"say \"\"x\"\"\"\n"), "{text}");
    }
}
