//! The options of scrun that a program can read (manual 4.2).

use std::ffi::{CStr, CString};

/// Keywords and values, leftmost first. A missing value is the empty string.
pub(crate) struct Options(Vec<(CString, CString)>);

impl Options {
    /// Checks the options that the shepherd has sent.
    ///
    /// # Errors
    /// Names the option that cannot be a C string.
    pub(crate) fn new(given: Vec<(String, Option<String>)>) -> Result<Self, String> {
        let options = given.into_iter().map(|(keyword, value)| {
            let shown = keyword.clone();
            let key = CString::new(keyword);
            let value = CString::new(value.unwrap_or_default());
            match (key, value) {
                (Ok(key), Ok(value)) => Ok((key, value)),
                _ => Err(format!("option {shown:?} contains a NUL byte")),
            }
        });
        Ok(Self(options.collect::<Result<_, _>>()?))
    }

    /// The value of the leftmost option with this keyword.
    pub(crate) fn get(&self, keyword: &CStr) -> Option<&CStr> {
        let found = self.0.iter().find(|(key, _)| key.as_c_str() == keyword);
        found.map(|(_, value)| value.as_c_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_option_is_used_and_an_option_without_value_is_empty() {
        let given = [("nodes", Some("4")), ("quiet", None), ("nodes", Some("8"))];
        let given = given.map(|(k, v)| (k.to_owned(), v.map(str::to_owned))).to_vec();
        let options = Options::new(given).unwrap();
        assert_eq!(options.get(c"nodes"), Some(c"4"));
        assert_eq!(options.get(c"quiet"), Some(c""));
        assert_eq!(options.get(c"node"), None);
    }

    #[test]
    fn an_option_with_a_nul_byte_is_named() {
        let given = vec![("group".to_owned(), Some("a\0b".to_owned()))];
        assert!(Options::new(given).err().unwrap().contains("group"));
    }
}
