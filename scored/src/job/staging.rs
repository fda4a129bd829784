//! Where the programs of a job that travel are put on its hosts: below the job's directory, by
//! name. Programs of one name with different contents are kept apart by their hashes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use score_proto::message::{Content, ElementSpec, JobSpec};

/// The folder of programs in a job's directory.
const FOLDER: &str = ".bin";

fn name(element: &ElementSpec) -> &OsStr {
    Path::new(OsStr::from_bytes(&element.path.0)).file_name().unwrap_or(OsStr::new("program"))
}

/// Where the program of an element is, relative to the job's directory; none when it does not
/// travel.
pub fn place(spec: &JobSpec, element: &ElementSpec) -> Option<PathBuf> {
    let content = element.content?;
    let mut all = spec.stages.iter().flat_map(|stage| &stage.elements);
    let is_alone = all
        .all(|one| one.content.is_none_or(|other| other == content || name(one) != name(element)));
    let mut place = PathBuf::from(FOLDER);
    if !is_alone {
        let digits = content.hash.iter().take(8).map(|byte| format!("{byte:02x}"));
        place.push(digits.collect::<String>());
    }
    place.push(name(element));
    Some(place)
}

/// Every file that has to be there, once.
pub fn files(spec: &JobSpec) -> Vec<(Content, PathBuf)> {
    let mut files = Vec::new();
    for element in spec.stages.iter().flat_map(|stage| &stage.elements) {
        if let (Some(content), Some(place)) = (element.content, place(spec, element))
            && !files.iter().any(|(_, there)| *there == place)
        {
            files.push((content, place));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::message::{Input, Kind, OsBytes, Output, StageSpec};

    fn element(path: &str, hash: Option<u8>) -> ElementSpec {
        ElementSpec {
            path: OsBytes(path.as_bytes().to_vec()),
            args: Vec::new(),
            input: Input::Default,
            output: Output::Default,
            kind: Kind::Plain,
            content: hash.map(|byte| Content { hash: [byte; 32], size: 1 }),
        }
    }

    #[test]
    fn programs_keep_their_names_and_namesakes_are_kept_apart() {
        let elements = [
            element("/a/run", Some(1)),
            element("/b/run", Some(2)),
            element("/b/run", Some(2)),
            element("/b/other", Some(2)),
            element("sh", None),
        ];
        let spec = JobSpec {
            hosts: Vec::new(),
            stages: vec![StageSpec { elements: elements.to_vec() }],
            environment: Vec::new(),
            directory: OsBytes(Vec::new()),
            umask: 0,
            options: Vec::new(),
            statistics: false,
            stdin: false,
            separate: false,
            networks: Vec::new(),
            sets: 0,
        };
        let places: Vec<_> = files(&spec).into_iter().map(|(_, place)| place).collect();
        let wanted = [".bin/0101010101010101/run", ".bin/0202020202020202/run", ".bin/other"];
        assert_eq!(places, wanted.map(PathBuf::from));
        assert_eq!(place(&spec, &elements[4]), None);
    }
}
