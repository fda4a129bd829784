//! What one node of `scatter` or `gather` says to another, and how much it may say before it has
//! to wait.
//!
//! A receiver grants bytes; a sender sends no more than it was granted. So a sender that has to
//! wait waits for a message, which it can do asleep, and nobody holds more than a bounded queue.

use thiserror::Error;

/// Bytes that a message needs beside the data it carries.
pub const OVERHEAD: usize = 1;

/// Pieces that the smallest ring between two nodes of a host holds for certain: its MTU is a
/// quarter of it.
pub const RING_PIECES: usize = 3;

/// Bytes that may be under way between two hosts: what a link carries while a node waits for a
/// processor, twice, because a grant waits as well, behind the data that its node passes on. PM
/// holds as many of the shortest packets.
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
    /// No more bytes will come.
    End,
    /// Towards the sender of data: that many more bytes are welcome.
    Grant(u64),
    /// Nobody reads here any more; the receiver of this need not send any further.
    Closed,
}

/// A message that no version of these programs sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HopError {
    /// Unknown kind or wrong size.
    #[error("a message of {0} bytes that is none of ours came from another node")]
    Malformed(usize),
    /// More data than was granted.
    #[error("another node sent {0} bytes more than it was granted")]
    Overrun(u64),
}

impl<'a> Message<'a> {
    /// Bytes of the whole message.
    pub fn len(&self) -> usize {
        OVERHEAD
            + match self {
                Message::Data(bytes) => bytes.len(),
                Message::Grant(_) => 8,
                Message::End | Message::Closed => 0,
            }
    }

    /// Whether the message has no bytes: never.
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

    /// Reads a message as it came.
    ///
    /// # Errors
    /// [`HopError::Malformed`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, HopError> {
        match (bytes.split_first(), bytes.len()) {
            (Some((&DATA, body)), 2..) => Ok(Message::Data(body)),
            (Some((&END, _)), 1) => Ok(Message::End),
            (Some((&CLOSED, _)), 1) => Ok(Message::Closed),
            (Some((&GRANT, body)), 9) => match body.first_chunk() {
                Some(number) => Ok(Message::Grant(u64::from_le_bytes(*number))),
                None => Err(HopError::Malformed(bytes.len())),
            },
            _ => Err(HopError::Malformed(bytes.len())),
        }
    }
}

/// The receiver's side of one hop: how much has been granted and has come.
#[derive(Debug, Clone, Copy)]
pub struct Granter {
    piece: u64,
    window: u64,
    outstanding: u64,
}

impl Granter {
    /// For a hop whose largest message carries `piece` bytes of data, and on which `window` bytes
    /// may be under way.
    pub fn new(piece: usize, window: usize) -> Self {
        Self { piece: piece as u64, window: window as u64, outstanding: 0 }
    }

    /// The room that a queue needs for this hop never to stall it for good.
    pub fn least_room(piece: usize) -> usize {
        piece * RING_PIECES
    }

    /// What to grant when the queue has `room` bytes free; only sums worth a message.
    pub fn due(&self, room: usize) -> Option<u64> {
        let allowed = (room as u64).min(self.window);
        let more = allowed.saturating_sub(self.outstanding);
        // A quarter at a time: a grant for each packet would cost as much as the packet.
        (more >= self.piece.max(allowed / 4)).then_some(more)
    }

    /// That much has been granted.
    pub fn granted(&mut self, bytes: u64) {
        self.outstanding += bytes;
    }

    /// That much data has come.
    ///
    /// # Errors
    /// [`HopError::Overrun`].
    pub fn came(&mut self, bytes: usize) -> Result<(), HopError> {
        let bytes = bytes as u64;
        let over = bytes.saturating_sub(self.outstanding);
        if over > 0 {
            return Err(HopError::Overrun(over));
        }
        self.outstanding -= bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_survives_its_writing() {
        for message in
            [Message::Data(b"x"), Message::End, Message::Grant(u64::MAX - 7), Message::Closed]
        {
            let mut bytes = vec![0; message.len()];
            message.write(&mut bytes);
            assert_eq!(Message::read(&bytes), Ok(message));
        }
    }

    #[test]
    fn strange_messages_are_refused() {
        for bytes in [&[][..], &[0], &[1], &[2, 0], &[3; 8], &[3; 10], &[4, 4], &[5]] {
            assert_eq!(Message::read(bytes), Err(HopError::Malformed(bytes.len())));
        }
    }

    #[test]
    fn grants_never_exceed_the_room_nor_come_in_crumbs() {
        let mut granter = Granter::new(100, 300);
        assert_eq!(granter.due(99), None);
        assert_eq!(granter.due(250), Some(250));
        granter.granted(250);
        assert_eq!(granter.due(1000), None, "50 more are not worth a message");
        granter.came(100).unwrap();
        assert_eq!(granter.due(150), None);
        assert_eq!(granter.due(1000), Some(150));
        assert_eq!(granter.came(151), Err(HopError::Overrun(1)));
    }

    #[test]
    fn many_packets_are_granted_at_once() {
        let mut granter = Granter::new(1000, 400_000);
        assert_eq!(granter.due(500_000), Some(400_000));
        granter.granted(400_000);
        granter.came(50_000).unwrap();
        assert_eq!(granter.due(500_000), None, "a grant for each packet costs too much");
        granter.came(50_000).unwrap();
        assert_eq!(granter.due(500_000), Some(100_000));
        // Little room, as in a queue that its readers have just begun to empty.
        assert_eq!(Granter::new(1000, 400_000).due(1500), Some(1500));
    }
}
