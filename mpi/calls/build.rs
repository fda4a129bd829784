//! Links the library under a name with a hyphen, which cargo cannot produce.

fn main() {
    score_link::link_beside("libscore_mpi.so", "libscore-mpi.so");
    println!("cargo:rerun-if-changed=build.rs");
}
