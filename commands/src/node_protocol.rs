//! The messages between the nodes of `scatter` and `gather`, and their flow control.
//!
//! A receiver grants bytes, and a sender sends no more than it was granted. A sender without credit
//! sleeps until a message arrives. All queues are therefore bounded.

use thiserror::Error;

/// Bytes of a message in addition to its data.
pub const HEADER_LEN: usize = 1;

/// Number of messages that always fit into the smallest ring between two nodes of a host, because
/// the MTU is a quarter of the ring.
pub const MIN_RING_MESSAGES: usize = 3;

/// Bytes that may be in flight between two hosts: twice the bytes that a link carries while a node
/// waits for a processor. The factor is 2 because a grant also waits, after the data that its node
/// forwards. PM can buffer this many bytes in the shortest packets.
pub const LINK_WINDOW: usize = 640 * 1024;

const DATA: u8 = 1;
const END: u8 = 2;
const GRANT: u8 = 3;
const CLOSED: u8 = 4;

/// One message between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// The next bytes.
    Data(&'a [u8]),
    /// The end of the data.
    End,
    /// From the receiver of data: permits the peer to send this number of further bytes.
    Grant(u64),
    /// From the receiver of data: it has closed its output, and the peer need not send any more.
    Closed,
}

/// The reason why a message is invalid. No version of these programs sends such a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// Unknown kind or wrong size.
    #[error("malformed message of {0} bytes from another node")]
    Malformed(usize),
    /// More data than was granted.
    #[error("another node sent {0} bytes more than it was granted")]
    Overrun(u64),
}

impl<'a> Message<'a> {
    /// Bytes of the whole message.
    pub fn len(&self) -> usize {
        HEADER_LEN
            + match self {
                Message::Data(bytes) => bytes.len(),
                Message::Grant(_) => 8,
                Message::End | Message::Closed => 0,
            }
    }

    /// Always false: every message has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the message into `buffer`, which has exactly [`Message::len`] bytes.
    pub fn write(&self, buffer: &mut [u8]) {
        let Some((kind, body)) = buffer.split_first_mut() else { return };
        match self {
            Message::Data(bytes) => {
                *kind = DATA;
                body.copy_from_slice(bytes);
            }
            Message::Grant(bytes) => {
                *kind = GRANT;
                body.copy_from_slice(&bytes.to_le_bytes());
            }
            Message::End => *kind = END,
            Message::Closed => *kind = CLOSED,
        }
    }

    /// Decodes a received message.
    ///
    /// # Errors
    /// [`ProtocolError::Malformed`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        match (bytes.split_first(), bytes.len()) {
            (Some((&DATA, body)), 2..) => Ok(Message::Data(body)),
            (Some((&END, _)), 1) => Ok(Message::End),
            (Some((&CLOSED, _)), 1) => Ok(Message::Closed),
            (Some((&GRANT, body)), 9) => match body.first_chunk() {
                Some(number) => Ok(Message::Grant(u64::from_le_bytes(*number))),
                None => Err(ProtocolError::Malformed(bytes.len())),
            },
            _ => Err(ProtocolError::Malformed(bytes.len())),
        }
    }
}

/// The receiver's side of one hop: the number of bytes that are granted but not yet received.
#[derive(Debug, Clone, Copy)]
pub struct CreditWindow {
    max_payload: u64,
    window: u64,
    outstanding: u64,
}

impl CreditWindow {
    /// A window for a hop whose largest message carries `max_payload` bytes of data, with at most
    /// `window` bytes in flight.
    pub fn new(max_payload: usize, window: usize) -> Self {
        Self { max_payload: max_payload as u64, window: window as u64, outstanding: 0 }
    }

    /// The capacity that a queue needs so that this hop cannot stall.
    pub fn min_capacity(max_payload: usize) -> usize {
        max_payload * MIN_RING_MESSAGES
    }

    /// The bytes to grant if the queue has `free` bytes free. `None` if they are too few for a
    /// message.
    pub fn next_grant(&self, free: usize) -> Option<u64> {
        let allowed = (free as u64).min(self.window);
        let grantable = allowed.saturating_sub(self.outstanding);
        // Grant at least a quarter of the window at once: a grant for each packet would cost as
        // much as the packet.
        (grantable >= self.max_payload.max(allowed / 4)).then_some(grantable)
    }

    /// Records that bytes were granted.
    pub fn record_grant(&mut self, bytes: u64) {
        self.outstanding += bytes;
    }

    /// Records that data was received.
    ///
    /// # Errors
    /// [`ProtocolError::Overrun`].
    pub fn record_data(&mut self, bytes: usize) -> Result<(), ProtocolError> {
        let bytes = bytes as u64;
        let excess = bytes.saturating_sub(self.outstanding);
        if excess > 0 {
            return Err(ProtocolError::Overrun(excess));
        }
        self.outstanding -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_decoded_unchanged() {
        for message in
            [Message::Data(b"x"), Message::End, Message::Grant(u64::MAX - 7), Message::Closed]
        {
            let mut bytes = vec![0; message.len()];
            message.write(&mut bytes);
            assert_eq!(Message::read(&bytes), Ok(message));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        for bytes in [&[][..], &[0], &[1], &[2, 0], &[3; 8], &[3; 10], &[4, 4], &[5]] {
            assert_eq!(Message::read(bytes), Err(ProtocolError::Malformed(bytes.len())));
        }
    }

    #[test]
    fn grants_never_exceed_the_free_space_and_are_never_small() {
        let mut window = CreditWindow::new(100, 300);
        assert_eq!(window.next_grant(99), None);
        assert_eq!(window.next_grant(250), Some(250));
        window.record_grant(250);
        assert_eq!(window.next_grant(1000), None, "50 more are not worth a message");
        window.record_data(100).unwrap();
        assert_eq!(window.next_grant(150), None);
        assert_eq!(window.next_grant(1000), Some(150));
        assert_eq!(window.record_data(151), Err(ProtocolError::Overrun(1)));
    }

    #[test]
    fn many_packets_are_granted_at_once() {
        let mut window = CreditWindow::new(1000, 400_000);
        assert_eq!(window.next_grant(500_000), Some(400_000));
        window.record_grant(400_000);
        window.record_data(50_000).unwrap();
        assert_eq!(window.next_grant(500_000), None, "a grant for each packet costs too much");
        window.record_data(50_000).unwrap();
        assert_eq!(window.next_grant(500_000), Some(100_000));
        // The queue has little free space, because its readers have just begun to empty it.
        assert_eq!(CreditWindow::new(1000, 400_000).next_grant(1500), Some(1500));
    }
}
