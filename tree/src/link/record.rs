//! Records: what travels on an open link. Two bytes of length, little-endian, then that many
//! bytes of ciphertext with its tag; inside, one byte of kind and the content.

use snow::TransportState;

use super::error::LinkError;
use super::handshake::noise_error;

/// Says only that the sender lives.
pub const KEEPALIVE: u8 = 0;
/// A piece of a message, with more to come.
pub const FRAGMENT: u8 = 1;
/// The last or only piece of a message.
pub const LAST_FRAGMENT: u8 = 2;
/// The sender goes; the content says why.
pub const CLOSE: u8 = 3;

/// Bytes of the authentication tag.
const TAG_LEN: usize = 16;
/// The least ciphertext: a kind and the tag.
pub const MIN_CIPHERTEXT_LEN: usize = 1 + TAG_LEN;
/// A record without content, with its length.
pub const EMPTY_RECORD_LEN: usize = 2 + MIN_CIPHERTEXT_LEN;
/// Content of one record at most: the length has 16 bits.
pub const MAX_CONTENT_LEN: usize = u16::MAX as usize - MIN_CIPHERTEXT_LEN;

/// Records after which a direction changes its key. Both sides count the same records.
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
    let length = keys.write_message(&plain, &mut out[start + 2..]).map_err(noise_error)?;
    debug_assert_eq!(length, plain.len() + TAG_LEN);
    out[start..start + 2].copy_from_slice(&(length as u16).to_le_bytes());
    if keys.sending_nonce().is_multiple_of(REKEY_INTERVAL) {
        keys.rekey_outgoing();
    }
    Ok(())
}

/// Opens one record: its kind and content.
pub fn open(keys: &mut TransportState, sealed: &[u8]) -> Result<Vec<u8>, LinkError> {
    let mut plain = vec![0; sealed.len()];
    let length = keys.read_message(sealed, &mut plain).map_err(|_| LinkError::BadRecord)?;
    plain.truncate(length);
    if keys.receiving_nonce().is_multiple_of(REKEY_INTERVAL) {
        keys.rekey_incoming();
    }
    Ok(plain)
}
