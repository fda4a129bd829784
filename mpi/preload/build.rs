//! The library's name has a hyphen, which cargo cannot write.

fn main() {
    score_link::link_beside("libscore_preload.so", "libscore-preload.so");
    println!("cargo:rerun-if-changed=build.rs");
}
