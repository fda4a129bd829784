//! The library's name has a hyphen, which cargo cannot write.

fn main() {
    score_link::link_beside("libscore_mpi.so", "libscore-mpi.so");
    println!("cargo:rerun-if-changed=build.rs");
}
