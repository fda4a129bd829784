//! The search path of the dynamic loader for a library (ld.so(8)). Its order is: DT_RPATH if there
//! is no DT_RUNPATH, LD_LIBRARY_PATH, DT_RUNPATH, the directories of ld.so.conf, the default
//! directories.

use super::image::ElfInfo;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maximum number of directories in ld.so.conf, and maximum depth of its includes.
const MAX_DIRECTORIES: usize = 256;
const MAX_DEPTH: usize = 4;

/// The part of the loader's search path that does not depend on the program.
#[derive(Debug)]
pub struct LibrarySearchPath {
    library_path: OsString,
    configuration: PathBuf,
    system_directories: Option<Vec<PathBuf>>,
}

impl LibrarySearchPath {
    /// The search path of this process: its LD_LIBRARY_PATH and /etc/ld.so.conf.
    pub fn from_env() -> Self {
        Self::new(std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(), "/etc/ld.so.conf".into())
    }

    /// A search path with another LD_LIBRARY_PATH and configuration.
    pub fn new(library_path: OsString, configuration: PathBuf) -> Self {
        Self { library_path, configuration, system_directories: None }
    }

    /// The possible paths of the library `name`, which the file `needed_by` needs, best first.
    pub fn candidates(&mut self, name: &[u8], needed_by: &Path, info: &ElfInfo) -> Vec<PathBuf> {
        let name = OsStr::from_bytes(name);
        if name.as_bytes().contains(&b'/') {
            return vec![PathBuf::from(name)];
        }
        let rpath = if info.runpath.is_none() { info.rpath.as_deref() } else { None };
        let mut directories = split(rpath.unwrap_or_default(), needed_by);
        directories.extend(split(self.library_path.as_bytes(), needed_by));
        directories.extend(split(info.runpath.as_deref().unwrap_or_default(), needed_by));
        directories.extend(self.system_directories().iter().cloned());
        directories.into_iter().map(|directory| directory.join(name)).collect()
    }

    /// The possible paths of a library that a running program loads by its name, best first.
    pub fn loaded_by_name(&mut self, name: &[u8]) -> Vec<PathBuf> {
        self.candidates(name, Path::new("/"), &ElfInfo::default())
    }

    fn system_directories(&mut self) -> &[PathBuf] {
        let configuration = &self.configuration;
        self.system_directories.get_or_insert_with(|| {
            let mut directories = Vec::new();
            read_configuration(configuration, 0, &mut directories);
            let default = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
            directories.extend(default.iter().map(PathBuf::from));
            directories
        })
    }
}

/// Splits a colon-separated list that may contain $ORIGIN and $LIB. For the loader, an empty entry
/// means the working directory. This function ignores such an entry.
fn split(list: &[u8], needed_by: &Path) -> Vec<PathBuf> {
    let origin = needed_by.parent().map(|parent| parent.as_os_str().to_owned()).unwrap_or_default();
    list.split(|byte| matches!(byte, b':' | b';'))
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            let mut text = entry.to_vec();
            for (token, value) in [
                (&b"${ORIGIN}"[..], origin.as_bytes()),
                (b"$ORIGIN", origin.as_bytes()),
                (b"${LIB}", b"lib"),
                (b"$LIB", b"lib"),
            ] {
                text = replace(&text, token, value);
            }
            PathBuf::from(OsStr::from_bytes(&text))
        })
        .collect()
}

fn replace(text: &[u8], token: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix(token) {
            out.extend_from_slice(value);
            rest = tail;
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}

/// Adds the directories that a file like ld.so.conf names, with its `include DIR/*.conf` lines.
fn read_configuration(path: &Path, depth: usize, directories: &mut Vec<PathBuf>) {
    let Ok(text) = std::fs::read_to_string(path) else { return };
    for line in text.lines().map(|line| line.split('#').next().unwrap_or("").trim()) {
        if directories.len() >= MAX_DIRECTORIES {
            return;
        }
        match line.strip_prefix("include") {
            Some(pattern) if depth < MAX_DEPTH => {
                for file in matching(pattern.trim(), path) {
                    read_configuration(&file, depth + 1, directories);
                }
            }
            Some(_) => {}
            None if line.starts_with('/') => directories.push(PathBuf::from(line)),
            None => {}
        }
    }
}

/// The files that match `DIR/*SUFFIX` or a plain name, sorted by name.
fn matching(pattern: &str, including_file: &Path) -> Vec<PathBuf> {
    let base = including_file.parent().unwrap_or(Path::new("/"));
    let Some((directory, suffix)) = pattern.split_once('*') else {
        return vec![base.join(pattern)];
    };
    let Ok(entries) = std::fs::read_dir(base.join(directory)) else { return vec![] };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.as_os_str().as_bytes().ends_with(suffix.as_bytes()))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_replaced_by_the_directory_of_the_dependent_file() {
        let needed_by = Path::new("/opt/app/bin/prog");
        let list = b"$ORIGIN/../lib:${ORIGIN}:/abs::";
        let expected = ["/opt/app/bin/../lib", "/opt/app/bin", "/abs"].map(PathBuf::from);
        assert_eq!(split(list, needed_by), expected);
    }

    #[test]
    fn rpath_is_used_only_without_runpath_and_in_the_order_of_the_loader() {
        let mut loader = LibrarySearchPath::new("/llp".into(), "/nonexistent".into());
        let mut info = ElfInfo { rpath: Some(b"/rp".to_vec()), ..ElfInfo::default() };
        let needed_by = Path::new("/bin/x");
        let first = |paths: Vec<PathBuf>, n: usize| {
            paths[..n].iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let paths = loader.candidates(b"l.so", needed_by, &info);
        assert_eq!(first(paths, 3), ["/rp/l.so", "/llp/l.so", "/lib64/l.so"]);
        info.runpath = Some(b"/run".to_vec());
        let paths = loader.candidates(b"l.so", needed_by, &info);
        assert_eq!(first(paths, 3), ["/llp/l.so", "/run/l.so", "/lib64/l.so"]);
        assert_eq!(loader.candidates(b"/a/l.so", needed_by, &info), [PathBuf::from("/a/l.so")]);
    }

    #[test]
    fn configuration_is_read_with_its_includes_and_a_cycle_ends() {
        let directory = std::env::temp_dir().join(format!("scrun-ldconf-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("d")).unwrap();
        let main = directory.join("main.conf");
        std::fs::write(&main, "include d/*.conf\n/main # why\nnonsense\n").unwrap();
        std::fs::write(directory.join("d/b.conf"), "/b\n").unwrap();
        std::fs::write(directory.join("d/a.conf"), "/a\ninclude ../main.conf\n").unwrap();
        let mut found = Vec::new();
        read_configuration(&main, 0, &mut found);
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found.first(), Some(&PathBuf::from("/a")));
        assert_eq!(found.last(), Some(&PathBuf::from("/main")));
        assert!(found.len() < 20);
    }
}
