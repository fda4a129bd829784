//! Links libpm.so with a soname and a named symbol version, and puts the soname's link beside it.

include!("../link/shared_object.rs");

fn main() {
    shared_object("libpm.so", "libpm.so.2", "pm.map");
}
