//! Finds the directories of SCore's headers and libraries from the path of the running command.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The reason why a file of SCore was not found.
#[derive(Debug, Error)]
pub enum InstallPathError {
    /// The path of the running program cannot be read.
    #[error("cannot determine the path of this program: {0}")]
    Command(std::io::Error),
    /// No directory has SCore's headers.
    #[error("pm.h is neither in {0} nor in the source tree {1}: install SCore again")]
    Headers(PathBuf, PathBuf),
    /// A library is missing.
    #[error("{0} is not in {1}: install SCore again, or in the build tree run `cargo build`")]
    Library(&'static str, PathBuf),
}

/// The directories that belong to the running command. For a command in PREFIX/bin they are
/// PREFIX/include, PREFIX/lib and PREFIX/etc. For a command in the build tree they are the
/// directory of the command and the headers of the source tree.
#[derive(Debug)]
pub struct InstallPaths {
    prefix: PathBuf,
    lib: PathBuf,
    source: PathBuf,
}

impl InstallPaths {
    /// Finds the directories for the running command.
    pub fn find() -> Result<Self, InstallPathError> {
        let command = std::env::current_exe().and_then(|path| path.canonicalize());
        let command = command.map_err(InstallPathError::Command)?;
        Ok(Self::from_folder(command.parent().unwrap_or(Path::new("/"))))
    }

    fn from_folder(folder: &Path) -> Self {
        let prefix = folder.parent().unwrap_or(folder).to_path_buf();
        let installed = folder.ends_with("bin") && prefix.join("lib").is_dir();
        let lib = if installed { prefix.join("lib") } else { folder.to_path_buf() };
        // The target directory may be outside the source tree. The path of this crate at compile
        // time is used in that case.
        let source = folder
            .ancestors()
            .find(|ancestor| ancestor.join("ffi-c/include/pm.h").is_file())
            .unwrap_or(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(folder));
        Self { lib, source: source.to_path_buf(), prefix }
    }

    /// The directory of pm.h and score.h.
    pub fn include(&self) -> Result<PathBuf, InstallPathError> {
        let folders = [self.prefix.join("include"), self.source.join("ffi-c/include")];
        let found = folders.iter().find(|folder| folder.join("pm.h").is_file());
        found.cloned().ok_or(InstallPathError::Headers(folders[0].clone(), self.source.clone()))
    }

    /// The directory that has all these libraries.
    pub fn lib(&self, names: &[&'static str]) -> Result<&Path, InstallPathError> {
        match names.iter().find(|name| !self.lib.join(name).is_file()) {
            Some(missing) => Err(InstallPathError::Library(missing, self.lib.clone())),
            None => Ok(&self.lib),
        }
    }

    /// The path of the site's own compiler list, which may not exist.
    pub fn site_file(&self) -> PathBuf {
        self.prefix.join("etc/compilers/site")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_in_a_build_tree_finds_the_headers_of_the_source_tree() {
        let paths = InstallPaths::find().unwrap();
        assert!(paths.include().unwrap().ends_with("ffi-c/include"));
    }

    #[test]
    fn a_missing_library_is_named_with_its_directory() {
        let paths = InstallPaths::from_folder(Path::new("/nowhere/bin"));
        let error = paths.lib(&["libscore.a"]).unwrap_err().to_string();
        assert!(error.contains("libscore.a") && error.contains("/nowhere/bin"), "{error}");
        assert_eq!(paths.site_file(), Path::new("/nowhere/etc/compilers/site"));
    }
}
