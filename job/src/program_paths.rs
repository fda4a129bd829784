//! The paths of the copied programs of a job, relative to the job's directory. A path ends in the
//! name of the program. If programs with different contents have the same name, their paths also
//! contain their hashes.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use score_proto::message::{ElementSpec, FileDigest, JobSpec};

/// The directory of programs in a job's directory.
const PROGRAM_DIR: &str = ".bin";
/// The archive of files for the job's tools, in the job's directory.
pub const TOOL_FILES_ARCHIVE: &str = ".tool-files.archive";

fn file_name(element: &ElementSpec) -> &OsStr {
    Path::new(OsStr::from_bytes(&element.path.0)).file_name().unwrap_or(OsStr::new("program"))
}

/// The path of an element's program, relative to the job's directory; None if the program is not
/// copied.
pub fn relative_path(spec: &JobSpec, element: &ElementSpec) -> Option<PathBuf> {
    let content = element.digest?;
    let mut elements = spec.stages.iter().flat_map(|stage| &stage.elements);
    let is_name_unique = elements.all(|other_element| {
        other_element
            .digest
            .is_none_or(|other| other == content || file_name(other_element) != file_name(element))
    });
    Some(path(element, content, is_name_unique))
}

fn path(element: &ElementSpec, content: FileDigest, is_name_unique: bool) -> PathBuf {
    let mut path = PathBuf::from(PROGRAM_DIR);
    if !is_name_unique {
        let digits = content.hash.iter().take(8).map(|byte| format!("{byte:02x}"));
        path.push(digits.collect::<String>());
    }
    path.push(file_name(element));
    path
}

/// Every file that is copied to the hosts of a job, once. The user controls the number of elements,
/// so the time must not grow faster than this number.
pub fn files(spec: &JobSpec) -> Vec<(FileDigest, PathBuf)> {
    let elements = || {
        let elements = spec.stages.iter().flat_map(|stage| &stage.elements);
        elements.filter_map(|element| Some((element, element.digest?)))
    };
    // None: programs with different contents have this name.
    let mut content_by_name: HashMap<&OsStr, Option<FileDigest>> = HashMap::new();
    for (element, content) in elements() {
        let known = content_by_name.entry(file_name(element)).or_insert(Some(content));
        *known = known.filter(|known| *known == content);
    }
    let mut listed = HashSet::new();
    let mut files = Vec::new();
    for (element, content) in elements() {
        let path = path(element, content, content_by_name[file_name(element)].is_some());
        if listed.insert(path.clone()) {
            files.push((content, path));
        }
    }
    files.extend(spec.tool_files.iter().map(|content| (**content, TOOL_FILES_ARCHIVE.into())));
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::message::{OsBytes, ProgramKind, StageSpec};

    fn element(path: &str, hash: Option<u8>) -> ElementSpec {
        ElementSpec {
            digest: hash.map(|byte| FileDigest { hash: [byte; 32], size: 1 }),
            ..ElementSpec::new(OsBytes(path.as_bytes().to_vec()), Vec::new(), ProgramKind::Plain)
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
            stages: vec![StageSpec { elements: elements.to_vec() }],
            ..JobSpec::default()
        };
        let with_tool_files =
            JobSpec { tool_files: elements[0].digest.map(Box::new), ..spec.clone() };
        let last = files(&with_tool_files).pop().unwrap();
        assert_eq!(last, (elements[0].digest.unwrap(), TOOL_FILES_ARCHIVE.into()));
        let paths: Vec<_> = files(&spec).into_iter().map(|(_, path)| path).collect();
        let expected = [".bin/0101010101010101/run", ".bin/0202020202020202/run", ".bin/other"];
        assert_eq!(paths, expected.map(PathBuf::from));
        assert_eq!(relative_path(&spec, &elements[4]), None);
        for (content, path) in files(&spec) {
            let same_path = |element: &&ElementSpec| {
                element.digest == Some(content)
                    && relative_path(&spec, element).as_ref() == Some(&path)
            };
            assert!(elements.iter().any(|element| same_path(&element)), "{path:?}");
        }
    }
}
