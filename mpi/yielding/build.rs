//! The library's name has a hyphen, which cargo cannot write.

fn main() {
    score_link::link_beside("libscore_yield.so", "libscore-yield.so");
    println!("cargo:rerun-if-changed=build.rs");
}
