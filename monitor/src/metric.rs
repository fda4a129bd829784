//! The metrics that can be displayed, and how the user chooses them (manual, table 3.4).

/// One metric of a monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// The fraction of time in which a process is busy, according to its idle flag.
    Load,
    /// Messages sent and received.
    Comm,
    /// Resident memory.
    Memory,
    /// Size of the job's files.
    Disk,
    /// User monitor 0, which the program sets (`sc_set_monitor`).
    Usr0,
    /// User monitor 1.
    Usr1,
}

impl Metric {
    /// All metrics, in the order in which they are displayed.
    pub const ALL: [Metric; 6] =
        [Metric::Load, Metric::Comm, Metric::Memory, Metric::Disk, Metric::Usr0, Metric::Usr1];

    /// The name of the metric in the option `monitor`.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Load => "load",
            Metric::Comm => "comm",
            Metric::Memory => "memory",
            Metric::Disk => "disk",
            Metric::Usr0 => "usr0",
            Metric::Usr1 => "usr1",
        }
    }

    /// The index of the metric in [`Metric::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The metrics that a value of the option `monitor` selects. Without a value these are load and
/// comm, for `all` the first four, and for `ALL` all six.
///
/// # Errors
/// One line with the list of valid values.
pub fn parse_metrics(value: Option<&str>) -> Result<Vec<Metric>, String> {
    let metrics = match value {
        None => &Metric::ALL[..2],
        Some("all") => &Metric::ALL[..4],
        Some("ALL") => &Metric::ALL[..],
        Some(name) => {
            let metric = Metric::ALL.into_iter().find(|kind| kind.name() == name);
            let unknown = || {
                let names = Metric::ALL.map(Metric::name).join(", ");
                format!("unknown monitor {name:?}; valid are {names}, all, ALL")
            };
            return metric.map(|kind| vec![kind]).ok_or_else(unknown);
        }
    };
    Ok(metrics.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_values_of_the_manual_are_accepted_and_an_error_lists_them() {
        let names =
            |value| parse_metrics(value).unwrap().into_iter().map(Metric::name).collect::<Vec<_>>();
        assert_eq!(names(None), ["load", "comm"]);
        assert_eq!(names(Some("all")), ["load", "comm", "memory", "disk"]);
        assert_eq!(names(Some("ALL")), ["load", "comm", "memory", "disk", "usr0", "usr1"]);
        for (index, kind) in Metric::ALL.into_iter().enumerate() {
            assert_eq!((names(Some(kind.name())), kind.index()), (vec![kind.name()], index));
        }
        for wrong in ["", "All", "LOAD", "usr2", "load,comm"] {
            let line = parse_metrics(Some(wrong)).unwrap_err();
            assert!(line.contains("load, comm, memory, disk, usr0, usr1, all, ALL"), "{line}");
        }
    }
}
