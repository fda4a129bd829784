//! Links the library under a name with a hyphen, which cargo cannot produce.

fn main() {
    score_link::link_beside("libscore_preload.so", "libscore-preload.so");
    println!("cargo:rerun-if-changed=build.rs");
}
