//! Records: the format of an open link. A record is a length of two bytes, little-endian, and that
//! many bytes of ciphertext with tag. The plaintext is one byte of kind and the content.

use snow::TransportState;

use super::error::LinkError;

/// A record without content, which shows that the sender is alive.
pub const KEEPALIVE: u8 = 0;
/// A fragment of a message, with more to follow.
pub const FRAGMENT: u8 = 1;
/// The last or only fragment of a message.
pub const LAST_FRAGMENT: u8 = 2;
/// The sender closes the link. The content is the reason.
pub const CLOSE: u8 = 3;

/// The length of the authentication tag in bytes.
const TAG_LEN: usize = 16;
/// The shortest ciphertext: a kind and the tag.
pub const MIN_CIPHERTEXT_LEN: usize = 1 + TAG_LEN;
/// The length of a record without content, including the length field.
pub const EMPTY_RECORD_LEN: usize = 2 + MIN_CIPHERTEXT_LEN;
/// The longest content of one record, because the length has 16 bits.
pub const MAX_CONTENT_LEN: usize = u16::MAX as usize - MIN_CIPHERTEXT_LEN;

/// The number of records after which a direction changes its key. Both sides count the same
/// records.
pub const REKEY_INTERVAL: u64 = 1 << 10;

/// Appends one record to `out`.
pub fn seal(
    keys: &mut TransportState,
    kind: u8,
    content: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), LinkError> {
    debug_assert!(content.len() <= MAX_CONTENT_LEN);
    let mut plain = Vec::with_capacity(1 + content.len());
    plain.push(kind);
    plain.extend_from_slice(content);
    let start = out.len();
    out.resize(start + 2 + plain.len() + TAG_LEN, 0);
    let length = keys.write_message(&plain, &mut out[start + 2..]).map_err(LinkError::of_noise)?;
    debug_assert_eq!(length, plain.len() + TAG_LEN);
    out[start..start + 2].copy_from_slice(&(length as u16).to_le_bytes());
    if keys.sending_nonce().is_multiple_of(REKEY_INTERVAL) {
        keys.rekey_outgoing();
    }
    Ok(())
}

/// Decrypts one record. Returns its kind and content.
pub fn open(keys: &mut TransportState, sealed: &[u8]) -> Result<Vec<u8>, LinkError> {
    let mut plain = vec![0; sealed.len()];
    let length = keys.read_message(sealed, &mut plain).map_err(|_| LinkError::BadRecord)?;
    plain.truncate(length);
    if keys.receiving_nonce().is_multiple_of(REKEY_INTERVAL) {
        keys.rekey_incoming();
    }
    Ok(plain)
}
