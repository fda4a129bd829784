//! Runs real programs of MPI, first under the launcher of their MPI library, then under scrun on
//! one host, on several hosts, and in time slices with another job. The results must be equal
//! except for known differences, and messages must go over PM.

mod known_differences;
mod library;
mod place;
mod programs;
mod results;

use std::fs;
use std::path::PathBuf;

use score_tests::TestEnv;

pub use library::MpiLibrary;
pub use place::closed_folder;
use place::{Launch, Place, RunReport};
use programs::{PROGRAMS, RealProgram};
use results::ResultLines;

const USAGE: &str = "\
usage: cargo xtask soak mpi [-quick] [-ranks N[,N...]] [-places PLACE[,PLACE...]] [NAME...]

Runs programs of MPI under the launcher of their MPI library and under scrun, and compares what they
print. Installs what it needs. NAME is a program, or a program and a library (mpi4py:MPICH).
  -ranks N,...       runs programs only with these numbers of ranks
  -places PLACE,...  runs programs under scrun only in these places: one-host, several-hosts,
                     time-slices
  -quick             two ranks, and no time slices
";

/// Which programs run, and how.
struct Selection {
    names: Vec<String>,
    ranks: Option<Vec<u32>>,
    places: Vec<Place>,
}

impl Selection {
    fn parse(args: &[String]) -> Result<Self, String> {
        let places = Place::OF_SCRUN.to_vec();
        let mut selection = Self { names: Vec::new(), ranks: None, places };
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-quick" => {
                    selection.ranks = Some(vec![2]);
                    selection.places.retain(|place| *place != Place::TimeSlices);
                }
                "-ranks" => {
                    let list = words.next().map(String::as_str).unwrap_or_default();
                    let ranks = list.split(',').map(str::parse).collect::<Result<_, _>>();
                    selection.ranks =
                        Some(ranks.map_err(|_| format!("-ranks {list:?}: not a list of numbers"))?);
                }
                "-places" => {
                    let list = words.next().map(String::as_str).unwrap_or_default();
                    selection.places =
                        list.split(',').map(Place::parse).collect::<Result<_, _>>()?;
                }
                name => selection.names.push(Self::known_name(name)?),
            }
        }
        Ok(selection)
    }

    fn known_name(name: &str) -> Result<String, String> {
        let program = name.split(':').next().unwrap_or_default();
        let is_known = PROGRAMS.iter().any(|known| known.name == program);
        let names = || PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
        is_known
            .then(|| name.to_owned())
            .ok_or_else(|| format!("unknown program {name:?} (valid: {})\n{USAGE}", names()))
    }

    fn includes(&self, program: &RealProgram, library: MpiLibrary) -> bool {
        let is_meant = |name: &String| match name.split_once(':') {
            Some((name, part)) => name == program.name && library.name().contains(part),
            None => name == program.name,
        };
        self.names.is_empty() || self.names.iter().any(is_meant)
    }

    fn includes_ranks(&self, ranks: u32) -> bool {
        self.ranks.as_ref().is_none_or(|list| list.contains(&ranks))
    }
}

/// The number of runs with each result.
#[derive(Default)]
struct Summary {
    equal: u32,
    known: u32,
    differing: Vec<String>,
    skipped: u32,
}

/// Runs the selected programs.
///
/// # Errors
/// Returns an error if a result under scrun differs and the difference is not known.
pub fn run(args: &[String]) -> Result<(), String> {
    if args.iter().any(|arg| arg.trim_start_matches('-') == "help") {
        print!("{USAGE}");
        return Ok(());
    }
    let selection = Selection::parse(args)?;
    let mut summary = Summary::default();
    for program in PROGRAMS {
        let libraries = program.libraries.iter().copied();
        for library in libraries.filter(|library| selection.includes(program, *library)) {
            run_program(program, library, &selection, &mut summary);
        }
    }
    let Summary { equal, known, differing, skipped } = summary;
    println!(
        "mpi: {equal} runs with equal results, {known} with known differences, {} with other \
         differences, {skipped} skipped",
        differing.len()
    );
    match (differing.is_empty(), equal + known) {
        (true, 0) => Err("no program has run".to_owned()),
        (true, _) => Ok(()),
        (false, _) => Err(format!("differences: {}", differing.join("; "))),
    }
}

fn run_program(
    program: &RealProgram,
    library: MpiLibrary,
    selection: &Selection,
    summary: &mut Summary,
) {
    let label = format!("{}, {}", program.name, library.name());
    let store = TestEnv::new();
    let command_line = match program.prepare(library, store.dir()) {
        Ok(command_line) => command_line,
        Err(reason) => {
            println!("{label}: skipped, {reason}");
            summary.skipped += 1;
            return;
        }
    };
    let rank_counts = program.ranks.iter().copied();
    for ranks in rank_counts.filter(|ranks| selection.includes_ranks(*ranks)) {
        let launch = Launch { program, library, ranks, command_line: &command_line };
        let label = format!("{label}, {ranks} ranks");
        let own = Place::OwnLauncher.run(&launch).remove(0);
        let (count, seconds) = (own.results.len(), own.elapsed.as_secs_f64());
        println!("{label}, own launcher: {count} results in {seconds:.1} s");
        write_output(&label, "own launcher", &own);
        // How the program ended is one result. If there is no other result, there is nothing to
        // compare.
        if count < 2 {
            println!("    the program has printed no results");
            summary.differing.push(format!("{label}, own launcher"));
            continue;
        }
        for place in selection.places.iter().copied() {
            if let Some(reason) = place.reason_to_skip(&launch) {
                println!("{label}, {}: skipped, {reason}", place.name());
                summary.skipped += 1;
                continue;
            }
            for report in place.run(&launch) {
                compare(&label, &launch, place, (&own.results, &report), summary);
            }
        }
    }
}

/// Compares the results under scrun with those under the own launcher, and prints the differences.
fn compare(
    label: &str,
    launch: &Launch,
    place: Place,
    (own, report): (&ResultLines, &RunReport),
    summary: &mut Summary,
) {
    let label = format!("{label}, {}", place.name());
    let (messages, seconds) = (report.messages, report.elapsed.as_secs_f64());
    let missing = own.difference(&report.results).map(|line| ("only its own launcher", line));
    let added = report.results.difference(own).map(|line| ("only scrun", line));
    let (mut lines, mut has_unknown) = (Vec::new(), false);
    for (origin, line) in missing.chain(added) {
        let reason = known_differences::reason(launch, place, line);
        // An error under the other launcher only is no failure of SCore.
        let is_better = origin == "only its own launcher" && results::is_error(line);
        has_unknown |= reason.is_none() && !is_better;
        let reason = reason.map(|text| format!(" (known: {text})")).unwrap_or_default();
        lines.push(format!("    {origin}: {line}{reason}"));
    }
    let verdict = match (lines.is_empty(), has_unknown) {
        (true, _) => "equal",
        (false, false) => "known differences",
        (false, true) => "DIFFERS",
    };
    println!("{label}: {verdict}, {messages} messages over PM, {seconds:.1} s");
    lines.iter().for_each(|line| println!("{line}"));
    match (lines.is_empty(), has_unknown) {
        (true, _) => summary.equal += 1,
        (false, false) => summary.known += 1,
        (false, true) => {
            let path = write_output(&label, "", report);
            println!("    its output: {}", path.display());
            summary.differing.push(label);
        }
    }
}

/// Writes the output of a run into a file below the target directory.
fn write_output(label: &str, place: &str, report: &RunReport) -> PathBuf {
    let folder = library::target_folder().join("soak-mpi");
    let name: String = format!("{label} {place}")
        .trim()
        .chars()
        .map(|letter| if letter.is_alphanumeric() || letter == '.' { letter } else { '_' })
        .collect();
    let path = folder.join(name + ".txt");
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, &report.output));
    if let Err(error) = written {
        println!("{}: {error}", path.display());
    }
    path
}
