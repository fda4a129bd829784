//! Links libscore.so with a soname and a named symbol version, against libpm.so.2.

include!("../link/shared_object.rs");
include!("../link/pm_stub.rs");

fn main() {
    shared_object("libscore.so", "libscore.so.6", "score.map");
    pm_stub();
}
