//! Tokens, which identify the users of the status page. A token is created when its user first
//! requests the address of the page, and is valid until the daemon ends.

use std::collections::BTreeMap;

/// The maximum number of users with a token. A larger number would not be genuine.
const MAX_TOKENS: usize = 65_536;

/// 128 random bits.
type Token = [u8; 16];

/// The tokens of all users.
#[derive(Debug, Default)]
pub struct Tokens(BTreeMap<u32, Token>);

impl Tokens {
    /// The token of a user. `generate` returns a new one. Returns `None` if there are too many
    /// tokens or no random bits.
    pub fn token_of(
        &mut self,
        uid: u32,
        generate: impl FnOnce() -> Option<Token>,
    ) -> Option<String> {
        if !self.0.contains_key(&uid) {
            if self.0.len() >= MAX_TOKENS {
                return None;
            }
            self.0.insert(uid, generate()?);
        }
        Some(self.0[&uid].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The user of a token. The duration of the search reveals nothing about the tokens.
    pub fn user_of(&self, token: &str) -> Option<u32> {
        let candidate = decode(token)?;
        let mut found = None;
        for (uid, stored) in &self.0 {
            let mut difference = 0;
            for (left, right) in stored.iter().zip(&candidate) {
                difference |= std::hint::black_box(left ^ right);
            }
            if std::hint::black_box(difference) == 0 {
                found = Some(*uid);
            }
        }
        found
    }
}

fn decode(text: &str) -> Option<Token> {
    let mut token = Token::default();
    if text.len() != 2 * token.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_for_its_user_until_the_daemon_ends() {
        let mut tokens = Tokens::default();
        let alice = tokens.token_of(1, || Some([0xab; 16])).unwrap();
        let bob = tokens.token_of(2, || Some([0x12; 16])).unwrap();
        assert_eq!(tokens.token_of(1, || unreachable!()), Some(alice.clone()));
        assert_eq!(alice, "ab".repeat(16));
        assert_eq!((tokens.user_of(&alice), tokens.user_of(&bob)), (Some(1), Some(2)));
        let almost = format!("{}ac", &alice[..30]);
        for wrong in ["", "ab", &alice[1..], &almost, &"é".repeat(16), &" ".repeat(32)] {
            assert_eq!(tokens.user_of(wrong), None, "{wrong}");
        }
        assert_eq!(tokens.token_of(3, || None), None);
    }
}
