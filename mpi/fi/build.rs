//! Links libpm_fi.so against libpm.so.2 and libscore.so.6. libfabric searches for `*-fi.so`, a file
//! name that cargo cannot produce, in a directory that should contain nothing else.

fn main() {
    score_link::against_pm();
    score_link::against_score();
    score_link::search_folder_above();
    score_link::link_in_folder("libpm_fi.so", "libfabric", "libpm-fi.so");
    println!("cargo:rerun-if-changed=build.rs");
}
