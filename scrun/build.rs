//! Exports the symbols that debuggers look for in a starter of parallel jobs (`mpir/`). The table
//! of dynamic symbols holds them, and `strip` keeps that table.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bin=scrun=-Wl,--export-dynamic-symbol=MPIR_*");
}
