//! Converts mangled symbol names to names of the source: C++, Rust, and modules of Fortran.

use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Maximum length of a name in bytes. A mangled name can represent an exponentially longer name.
pub const MAX_NAME_LEN: usize = 1024;

/// The name of a symbol in the source. Names that are not mangled are only cleaned.
pub fn demangle(symbol: &str) -> String {
    let (symbol, version) = match symbol.find('@') {
        Some(at) => symbol.split_at(at),
        None => (symbol, ""),
    };
    let name = rust(symbol).or_else(|| cpp(symbol)).or_else(|| fortran(symbol));
    let name = name.unwrap_or_else(|| symbol.to_owned()) + version;
    clean(&name)
}

/// Removes control characters, which a terminal could interpret, and limits the length.
pub fn clean(name: &str) -> String {
    let mut text = LimitedText::default();
    for letter in name.chars().filter(|letter| !letter.is_control()) {
        if text.write_char(letter).is_err() {
            break;
        }
    }
    text.finish()
}

/// The path of a function of Rust, if the symbol is one of Rust's.
pub fn rust(symbol: &str) -> Option<String> {
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut text = LimitedText::default();
    let _ = write!(text, "{name:#}");
    Some(text.finish())
}

/// Demangles without parameters and result, which would make a line of a tree too long.
fn cpp(symbol: &str) -> Option<String> {
    if !symbol.starts_with("_Z") && !symbol.starts_with("__Z") {
        return None;
    }
    let (parsed, tail) = BorrowedSymbol::with_tail(symbol.as_bytes()).ok()?;
    let mut text = LimitedText::default();
    let options = DemangleOptions::new().no_params().no_return_type();
    let result = parsed.structured_demangle(&mut text, &options);
    if result.is_err() && !text.is_full {
        return None;
    }
    let _ = text.write_str(std::str::from_utf8(tail).unwrap_or_default());
    Some(text.finish())
}

/// Handles gfortran's `__module_MOD_procedure`, Intel's `module_mp_procedure_` and LLVM's
/// `_QMmodulePprocedure`.
fn fortran(symbol: &str) -> Option<String> {
    let is_name = |name: &str| {
        name.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    let (base, clone) = match symbol.find('.') {
        Some(at) => symbol.split_at(at),
        None => (symbol, ""),
    };
    let gnu = || base.strip_prefix("__")?.split_once("_MOD_");
    let intel = || base.strip_suffix('_')?.split_once("_mp_");
    let llvm = || base.strip_prefix("_QM")?.split_once('P');
    let (module, procedure) = gnu().or_else(intel).or_else(llvm)?;
    let is_ours = is_name(module) && is_name(procedure);
    is_ours.then(|| format!("{module}::{procedure}{clone}"))
}

/// Text that ends with `...` if it would be too long.
#[derive(Default)]
struct LimitedText {
    text: String,
    is_full: bool,
}

impl LimitedText {
    fn finish(mut self) -> String {
        if self.is_full {
            self.text.push_str("...");
        }
        self.text
    }
}

impl Write for LimitedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_NAME_LEN - self.text.len();
        let boundaries = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let fitting = match text.len() <= room {
            true => text.len(),
            false => boundaries.take_while(|end| *end <= room).last().unwrap_or(0),
        };
        self.text.push_str(&text[..fitting]);
        self.is_full |= fitting < text.len();
        if self.is_full { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_their_source_has_them() {
        for (symbol, name) in [
            ("main", "main"),
            ("_ZN5space3fooEii", "space::foo"),
            ("_ZNK5Outer5innerIiEET_v", "Outer::inner<int>"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("__heat_MOD_sweep", "heat::sweep"),
            ("__heat_MOD_sweep.constprop.0", "heat::sweep.constprop.0"),
            ("heat_mp_sweep_", "heat::sweep"),
            ("_QMheatPsweep", "heat::sweep"),
            ("memcpy@plt", "memcpy@plt"),
            ("_ZN5space3fooEii@plt", "space::foo@plt"),
            ("my_mp_", "my_mp_"),
            ("_Znonsense", "_Znonsense"),
        ] {
            assert_eq!(demangle(symbol), name, "{symbol}");
        }
    }

    #[test]
    fn a_name_that_grows_exponentially_is_cut() {
        // Each template argument is twice as long as the one before: S_ and the following names
        // refer to it.
        let mut symbol = "_Z1fI1AIiiE".to_owned();
        for index in 0..30 {
            let reference = match index {
                0 => "S_".to_owned(),
                more => {
                    format!("S{}_", char::from_digit(more - 1, 36).unwrap().to_ascii_uppercase())
                }
            };
            symbol += &format!("1AI{reference}{reference}E");
        }
        symbol += "Evv";
        assert!(demangle(&symbol).len() <= MAX_NAME_LEN + 3);
    }

    #[test]
    fn a_name_cannot_send_control_sequences_to_the_terminal() {
        assert_eq!(demangle("evil\u{1b}[2J\nname"), "evil[2Jname");
        let long = "x".repeat(10_000);
        assert_eq!(demangle(&long).len(), MAX_NAME_LEN + 3);
    }
}
