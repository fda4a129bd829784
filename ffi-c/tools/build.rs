//! Links libscoretools.so with a soname and a named symbol version.

fn main() {
    score_link::shared_object("libscoretools.so", "libscoretools.so.1", "scoretools.map");
}
