//! Links libscore.so with a soname and a named symbol version, against libpm.so.2.

fn main() {
    score_link::shared_object("libscore.so", "libscore.so.6", "score.map");
    score_link::against_pm();
}
