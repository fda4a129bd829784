//! The programs of MPI that the soak runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use score_tests::binaries;
use score_tests::test_env::is_installed;

use super::library::{MpiLibrary, target_folder};
use super::results::OutputKind;

/// A program that runs on several ranks.
pub struct RealProgram {
    /// The name on the command line and in output.
    pub name: &'static str,
    /// The libraries for which the program exists.
    pub libraries: &'static [MpiLibrary],
    /// The numbers of ranks on which the program can run.
    pub ranks: &'static [u32],
    /// Which lines of its output are results.
    pub output: OutputKind,
    /// Time limit in seconds if each rank has a processor.
    pub timeout_s: u32,
    /// Whether the program can run on several hosts.
    pub spans_hosts: bool,
    /// Environment variables in the form of a shell.
    pub variables: &'static str,
    source: ProgramSource,
}

/// The origin of a program.
enum ProgramSource {
    /// A file of tests/programs, compiled by the library's own compiler, and its arguments.
    C { file: &'static str, compiler_options: &'static [&'static str], args: &'static str },
    /// A file of tests/programs that needs a module of Debian's Python.
    Python { file: &'static str, module: &'static str },
    /// The test suite in the source distribution of mpi4py, without the tests that cannot run.
    Mpi4py,
    /// An installed command, and a command that prepares its directory.
    Installed { program: &'static str, args: &'static str, prepare: Option<&'static str> },
}

/// The directory of the programs, relative to the top of the tree.
const PROGRAMS_FOLDER: &str = "tests/programs";
/// The numbers of ranks of most programs.
const ALL_RANKS: &[u32] = &[2, 3, 4, 8];
const C_LIBRARIES: &[MpiLibrary] =
    &[MpiLibrary::Mpich, MpiLibrary::MpichAbi, MpiLibrary::OpenMpi, MpiLibrary::OpenMpiDebian];

const fn c_program(
    name: &'static str,
    file: &'static str,
    compiler_options: &'static [&'static str],
    args: &'static str,
) -> RealProgram {
    RealProgram {
        name,
        libraries: C_LIBRARIES,
        ranks: ALL_RANKS,
        output: OutputKind::Plain,
        timeout_s: 300,
        spans_hosts: true,
        variables: "",
        source: ProgramSource::C { file, compiler_options, args },
    }
}

const fn debian_program(
    name: &'static str,
    output: OutputKind,
    ranks: &'static [u32],
    source: ProgramSource,
) -> RealProgram {
    RealProgram {
        name,
        libraries: &[MpiLibrary::OpenMpiDebian],
        ranks,
        output,
        timeout_s: 300,
        spans_hosts: true,
        variables: "",
        source,
    }
}

/// The programs that the soak can run.
pub const PROGRAMS: &[RealProgram] = &[
    c_program("messages", "mpi_messages.c", &[], ""),
    c_program("windows", "mpi_windows.c", &[], ""),
    c_program("openmp-funneled", "mpi_threads.c", &["-fopenmp"], "funneled"),
    c_program("openmp-multiple", "mpi_threads.c", &["-fopenmp"], "multiple"),
    RealProgram {
        name: "mpi4py",
        libraries: &[MpiLibrary::Mpich, MpiLibrary::OpenMpi, MpiLibrary::OpenMpiDebian],
        ranks: ALL_RANKS,
        output: OutputKind::Unittest,
        timeout_s: 1200,
        spans_hosts: true,
        variables: "",
        source: ProgramSource::Mpi4py,
    },
    debian_program(
        "netpipe",
        OutputKind::Sizes,
        &[2],
        ProgramSource::Installed {
            program: "NPopenmpi",
            args: "-i -u 1048576 -n 20",
            prepare: None,
        },
    ),
    RealProgram {
        libraries: &[MpiLibrary::MpichDebian],
        ..debian_program(
            "netpipe-mpich",
            OutputKind::Sizes,
            &[2],
            ProgramSource::Installed {
                program: "NPmpich2",
                args: "-i -u 1048576 -n 20",
                prepare: None,
            },
        )
    },
    debian_program(
        "lammps",
        OutputKind::Lammps,
        ALL_RANKS,
        ProgramSource::Installed {
            program: "lmp",
            args: "-in PROGRAMS/mpi_melt.lammps",
            prepare: None,
        },
    ),
    RealProgram {
        // The program refuses to set the number of threads itself if scrun has set it.
        variables: "OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive",
        ..debian_program(
            "gromacs",
            OutputKind::Gromacs,
            &[2, 4],
            ProgramSource::Installed {
                program: "gmx_mpi",
                args: "mdrun -quiet -s STORE/topol.tpr -reprod -g md.log",
                prepare: Some("mpi_water.sh"),
            },
        )
    },
    debian_program(
        "h5py",
        OutputKind::Plain,
        ALL_RANKS,
        ProgramSource::Python { file: "mpi_parallel_file.py", module: "h5py._debian_h5py_mpi" },
    ),
    RealProgram {
        // Without this variable petsc4py finds PETSc only through Debian's alternatives, which may
        // not be configured.
        variables: "PETSC_DIR=$(echo /usr/lib/petscdir/petsc*/*-real)",
        ..debian_program(
            "petsc4py",
            OutputKind::Plain,
            ALL_RANKS,
            ProgramSource::Python { file: "mpi_poisson.py", module: "petsc4py.PETSc" },
        )
    },
    RealProgram {
        libraries: &[MpiLibrary::Libfabric],
        spans_hosts: false,
        ..debian_program(
            "fi_pingpong",
            OutputKind::Sizes,
            &[2],
            ProgramSource::Installed {
                program: "fi_pingpong",
                args: "PROGRAMS/fi_pingpong.sh",
                prepare: None,
            },
        )
    },
];

impl RealProgram {
    /// Makes a program ready in the directory `store`, which all users can read. Returns the
    /// command line of a rank.
    ///
    /// # Errors
    /// The software that this machine lacks.
    pub fn prepare(&self, library: MpiLibrary, store: &Path) -> Result<String, String> {
        library.check_installed()?;
        match &self.source {
            ProgramSource::C { file, compiler_options, args } => {
                let program = store.join(self.name);
                let mut compiler = Command::new(library.compiler());
                compiler.arg(copy_to(store, file)?).args(["-O2", "-o"]).arg(&program);
                run_quietly(compiler.args(*compiler_options))?;
                Ok(format!("{} {args}", program.display()))
            }
            ProgramSource::Python { file, module } => {
                let python = library.python();
                let script =
                    format!("{} {} -c 'import {module}'", self.variables, python.display());
                run_quietly(Command::new("/bin/sh").args(["-c", &script]))
                    .map_err(|_| format!("{} has no module {module}", python.display()))?;
                Ok(format!("{} {}", python.display(), copy_to(store, file)?.display()))
            }
            ProgramSource::Mpi4py => mpi4py_command(library, store),
            ProgramSource::Installed { program, args, prepare } => {
                if !is_installed(program) {
                    return Err(format!("no {program}"));
                }
                if let Some(script) = prepare {
                    let script = copy_to(store, script)?;
                    run_quietly(Command::new("/bin/sh").arg(script).current_dir(store))?;
                }
                installed_command(program, args, store)
            }
        }
    }
}

/// Returns the command line of an installed program. A word `PROGRAMS/FILE` becomes the path of a
/// copy of FILE in `store`, and `STORE` becomes the path of `store`.
fn installed_command(program: &str, args: &str, store: &Path) -> Result<String, String> {
    let words = args.split(' ').map(|word| match word.strip_prefix("PROGRAMS/") {
        Some(file) => Ok(copy_to(store, file)?.display().to_string()),
        None => Ok(word.replace("STORE", &store.display().to_string())),
    });
    let words = words.collect::<Result<Vec<String>, String>>()?.join(" ");
    // A script calls the program itself.
    let is_script = args.starts_with("PROGRAMS/");
    Ok(format!("{} {words}", if is_script { "/bin/sh" } else { program }))
}

/// Returns the command line of the test suite of the mpi4py in the library's Python.
fn mpi4py_command(library: MpiLibrary, store: &Path) -> Result<String, String> {
    // "spawn" excludes tests that need a launcher that starts more processes. "dynproc" excludes
    // tests that connect programs: with Open MPI they need a launcher that publishes names. If such
    // a test fails for two ranks, the other ranks wait for them in the test.
    let (version, program, options) = match library {
        // Over libfabric (pml cm) Open MPI 4.1.4 crashes in a persistent send from MPI_BOTTOM, and
        // it does not find a synchronous message of a rank to itself by MPI_Iprobe. Both also
        // happen with libfabric's tcp provider under mpirun. The second makes tests of p2p_obj and
        // util_pkl5 wait for ever.
        MpiLibrary::OpenMpiDebian => {
            ("3.1.4", "test/runtests.py", "-v -e spawn -e dynproc -e p2p_obj -e util_pkl5")
        }
        MpiLibrary::OpenMpi => ("4.1.2", "test/main.py", "-v -e spawn -e dynproc"),
        _ => ("4.1.2", "test/main.py", "-v -e spawn"),
    };
    let folder = target_folder().join(format!("mpi4py-{version}"));
    let program = folder.join(program);
    let python = library.python();
    if !program.exists() {
        return Err(format!("{} is not there", folder.display()));
    }
    run_quietly(Command::new(&python).args(["-c", "import mpi4py"]))
        .map_err(|_| format!("{} has no module mpi4py", python.display()))?;
    let program = match library {
        MpiLibrary::OpenMpiDebian => {
            let suite = copy_to(store, "mpi4py_suite.py")?;
            format!("{} testAlltoallwBottom {}", suite.display(), program.display())
        }
        _ => program.display().to_string(),
    };
    Ok(format!("{} {program} {options}", python.display()))
}

/// Copies a file of tests/programs. Returns the path of the copy.
fn copy_to(store: &Path, file: &str) -> Result<PathBuf, String> {
    let (from, to) = (binaries::root().join(PROGRAMS_FOLDER).join(file), store.join(file));
    std::fs::copy(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
    Ok(to)
}

/// Runs a command to its end. Shows its output only if it fails.
fn run_quietly(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {text}")) }
}
