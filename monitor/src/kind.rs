//! What there is to be shown, and how the user chooses (manual, table 3.4).

/// One thing that a monitor shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// How much of its time a process is busy, by its idle flag.
    Load,
    /// Messages sent and received.
    Comm,
    /// Resident memory.
    Memory,
    /// The job's files.
    Disk,
    /// What the program has set (`sc_set_monitor`), monitor 0.
    Usr0,
    /// The same, monitor 1.
    Usr1,
}

impl Kind {
    /// All, in the order in which they are shown.
    pub const ALL: [Kind; 6] =
        [Kind::Load, Kind::Comm, Kind::Memory, Kind::Disk, Kind::Usr0, Kind::Usr1];

    /// What the user calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Load => "load",
            Kind::Comm => "comm",
            Kind::Memory => "memory",
            Kind::Disk => "disk",
            Kind::Usr0 => "usr0",
            Kind::Usr1 => "usr1",
        }
    }

    /// Its place in [`Kind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What the value of the option `monitor` asks for: load and comm without one, the first four for
/// `all`, all six for `ALL`.
///
/// # Errors
/// One line with the list of values.
pub fn kinds(value: Option<&str>) -> Result<Vec<Kind>, String> {
    let many = match value {
        None => &Kind::ALL[..2],
        Some("all") => &Kind::ALL[..4],
        Some("ALL") => &Kind::ALL[..],
        Some(name) => {
            let one = Kind::ALL.into_iter().find(|kind| kind.name() == name);
            let unknown = || {
                let names = Kind::ALL.map(Kind::name).join(", ");
                format!("there is no monitor {name:?}; it is one of {names}, all, ALL")
            };
            return one.map(|kind| vec![kind]).ok_or_else(unknown);
        }
    };
    Ok(many.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_manual_and_others_are_refused_with_the_list() {
        let names = |value| kinds(value).unwrap().into_iter().map(Kind::name).collect::<Vec<_>>();
        assert_eq!(names(None), ["load", "comm"]);
        assert_eq!(names(Some("all")), ["load", "comm", "memory", "disk"]);
        assert_eq!(names(Some("ALL")), ["load", "comm", "memory", "disk", "usr0", "usr1"]);
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!((names(Some(kind.name())), kind.index()), (vec![kind.name()], at));
        }
        for wrong in ["", "All", "LOAD", "usr2", "load,comm"] {
            let line = kinds(Some(wrong)).unwrap_err();
            assert!(line.contains("load, comm, memory, disk, usr0, usr1, all, ALL"), "{line}");
        }
    }
}
