//! Links libpm.so with a soname and a named symbol version.

fn main() {
    score_link::shared_object("libpm.so", "libpm.so.2", "pm.map");
}
