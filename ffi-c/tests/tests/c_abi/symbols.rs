//! The exports and dependencies of the libraries: one copy of PM, and only the promised names.

use std::process::Command;

use score_c_tests::{build_dir, exported_names, stdout};

/// The names in a dynamic symbol table that an option of nm selects, with their versions.
fn dynamic_symbols(library: &str, nm_option: &str) -> Vec<String> {
    let path = build_dir().join(library);
    let text =
        stdout(Command::new("nm").args(["-D", "--with-symbol-versions", nm_option]).arg(path));
    let name = |line: &str| line.split_whitespace().last().unwrap_or_default().to_string();
    let mut names: Vec<String> = text.lines().map(name).collect();
    names.sort();
    names
}

fn exported(library: &str, version: &str) -> Vec<String> {
    let names = dynamic_symbols(library, "--defined-only").into_iter();
    let suffix = format!("@@{version}");
    let plain = |name: String| match name.strip_suffix(&suffix) {
        Some(plain) => plain.to_string(),
        None => panic!("{library}: {name} is not of version {version}"),
    };
    names.filter(|name| name != version).map(plain).collect()
}

fn dynamic_section(library: &str) -> String {
    stdout(Command::new("readelf").arg("-dW").arg(build_dir().join(library)))
}

#[test]
fn libpm_so_exports_exactly_the_committed_list() {
    assert_eq!(exported("libpm.so", "PM_2.0"), exported_names("pm.map"));
}

#[test]
fn libscore_so_exports_exactly_the_committed_list() {
    assert_eq!(exported("libscore.so", "SCORE_6.0"), exported_names("score.map"));
}

#[test]
fn libscoretools_so_exports_exactly_the_committed_list() {
    assert_eq!(exported("libscoretools.so", "SCORE_TOOLS_1.0"), exported_names("scoretools.map"));
}

#[test]
fn each_library_has_its_soname_and_a_link_with_this_name() {
    for (library, soname) in [
        ("libpm.so", "libpm.so.2"),
        ("libscore.so", "libscore.so.6"),
        ("libscoretools.so", "libscoretools.so.1"),
    ] {
        let section = dynamic_section(library);
        assert!(section.contains(&format!("soname: [{soname}]")), "{section}");
        let link = std::fs::read_link(build_dir().join(soname)).unwrap();
        assert_eq!(link.to_str(), Some(library));
    }
}

#[test]
fn libscore_so_uses_pm_from_libpm_so_and_contains_no_copy() {
    let section = dynamic_section("libscore.so");
    assert!(section.contains("Shared library: [libpm.so.2]"), "{section}");
    let undefined = dynamic_symbols("libscore.so", "--undefined-only");
    assert!(undefined.contains(&"pmAttachContext@PM_2.0".to_string()), "{undefined:?}");
    // The list includes local symbols. Functions of score_pm would bring their own statics.
    let all = stdout(Command::new("nm").arg("--demangle").arg(build_dir().join("libscore.so")));
    assert!(all.contains("score_runtime::"), "libscore.so has no local symbols to check");
    let copied: Vec<&str> = all.lines().filter(|line| line.contains("score_pm::")).collect();
    assert!(copied.is_empty(), "{copied:?}");
}

#[test]
fn the_libraries_depend_only_on_the_c_library() {
    let allowed = ["libpm.so.2", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"];
    for library in ["libpm.so", "libscore.so", "libscoretools.so"] {
        for line in dynamic_section(library).lines().filter(|line| line.contains("(NEEDED)")) {
            assert!(allowed.iter().any(|name| line.contains(&format!("[{name}]"))), "{line}");
        }
    }
}

#[test]
fn each_archive_defines_all_that_its_shared_object_exports() {
    let archives = [("libpm.a", &["pm.map"][..]), ("libscore.a", &["pm.map", "score.map"])];
    for (archive, maps) in archives {
        let path = build_dir().join(archive);
        // nm is not used. With LLVM's plugin it fails on the bitcode that rustc adds to the code.
        let text = stdout(Command::new("readelf").arg("-sW").arg(path));
        let defined: Vec<&str> = text.lines().filter_map(global).collect();
        for name in maps.iter().flat_map(|map| exported_names(map)) {
            let count = defined.iter().filter(|found| **found == name).count();
            assert_eq!(count, 1, "{archive}: {name} is defined {count} times");
        }
    }
}

/// The name in a line of `readelf -s`, if it is a definition that other objects can use.
fn global(line: &str) -> Option<&str> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, _, _, _, "GLOBAL", "DEFAULT", section, name] if section != "UND" => Some(name),
        _ => None,
    }
}

#[test]
fn no_exported_function_may_unwind_into_c() {
    // `extern "C"` aborts on a panic; only "C-unwind" would not.
    let root = score_c_tests::ffi_c().parent().unwrap();
    for directory in ["ffi-c/pm/src", "ffi-c/tools/src", "libscore/src"] {
        for entry in std::fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("C-unwind"), "{}", path.display());
            }
        }
    }
}
