//! placeholder
pub fn report(_json: bool) -> String {
    String::new()
}
