//! Records: what travels on an open link. Two bytes of length, little-endian, then that many
//! bytes of ciphertext with its tag; inside, one byte of kind and the content.

use snow::TransportState;

use super::fault::Fault;
use super::handshake::failed;

/// Says only that the sender lives.
pub const ALIVE: u8 = 0;
/// A piece of a message, with more to come.
pub const PIECE: u8 = 1;
/// The last or only piece of a message.
pub const LAST: u8 = 2;
/// The sender goes; the content says why.
pub const LEAVE: u8 = 3;

/// Bytes of the authentication tag.
const TAG: usize = 16;
/// The least ciphertext: a kind and the tag.
pub const SHORTEST: usize = 1 + TAG;
/// A record without content, with its length.
pub const EMPTY: usize = 2 + SHORTEST;
/// Content of one record at most: the length has 16 bits.
pub const CONTENT: usize = u16::MAX as usize - SHORTEST;

/// Records after which a direction changes its key. Both sides count the same records.
pub const REKEY: u64 = 1 << 10;

/// Appends one record to `out`.
pub fn seal(
    keys: &mut TransportState,
    kind: u8,
    content: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    debug_assert!(content.len() <= CONTENT);
    let mut plain = Vec::with_capacity(1 + content.len());
    plain.push(kind);
    plain.extend_from_slice(content);
    let start = out.len();
    out.resize(start + 2 + plain.len() + TAG, 0);
    let length = keys.write_message(&plain, &mut out[start + 2..]).map_err(failed)?;
    debug_assert_eq!(length, plain.len() + TAG);
    out[start..start + 2].copy_from_slice(&(length as u16).to_le_bytes());
    if keys.sending_nonce().is_multiple_of(REKEY) {
        keys.rekey_outgoing();
    }
    Ok(())
}

/// Opens one record: its kind and content.
pub fn open(keys: &mut TransportState, sealed: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut plain = vec![0; sealed.len()];
    let length = keys.read_message(sealed, &mut plain).map_err(|_| Fault::Record)?;
    plain.truncate(length);
    if keys.receiving_nonce().is_multiple_of(REKEY) {
        keys.rekey_incoming();
    }
    Ok(plain)
}
