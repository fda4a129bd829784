//! Exports the symbols that debuggers look for in a starter of parallel jobs (`mpir/`). They
//! are in the table of dynamic symbols then, which `strip` keeps.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bin=scrun=-Wl,--export-dynamic-symbol=MPIR_*");
}
