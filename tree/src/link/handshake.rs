//! The handshake of a link. A preface in clear text comes first, so that a peer with another
//! version gets a clear error. The two messages of Noise NNpsk0 follow, each of a fixed length. One
//! record from the initiator ends the handshake, because the first message alone could be a replay.
//!
//! | sender | bytes |
//! |---|---|
//! | initiator | magic and version (8), ephemeral key and tag (48) |
//! | responder | magic and version (8), ephemeral key and tag (48) |
//! | initiator | one empty record (19) |
//!
//! Before the end of the handshake the responder holds at most [`FIRST_FLIGHT_LEN`] received bytes.

use score_proto::PROTOCOL_VERSION;
use snow::{Builder, HandshakeState, TransportState};

use super::error::LinkError;
use super::record;
use crate::key::Key;

/// Ephemeral keys for each link. The cluster key is mixed in before anything else.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: [u8; 4] = *b"SCOD";
/// Magic and version.
const PREFACE_LEN: usize = 8;
/// The size of a public key and a tag.
const NOISE_MESSAGE_LEN: usize = 32 + 16;
/// The length of either side's first flight in bytes.
pub const FIRST_FLIGHT_LEN: usize = PREFACE_LEN + NOISE_MESSAGE_LEN;

/// A handshake in progress.
#[derive(Debug)]
pub struct Handshake {
    stage: Stage,
    received: [u8; FIRST_FLIGHT_LEN],
    received_len: usize,
}

/// The next step of the handshake.
#[derive(Debug)]
enum Stage {
    /// This side has connected and waits for the answer.
    Dialled(Box<HandshakeState>),
    /// This side waits for the first flight. It creates cryptographic state only after the flight
    /// is complete, so that an unauthenticated peer costs no more than its bytes.
    Accepting(Key),
    /// The responder has answered. It waits for the proof that the initiator could decrypt the
    /// answer.
    Confirming(Box<TransportState>),
    /// The handshake has ended, with or without success.
    Done,
}

fn preface(version: u32) -> [u8; PREFACE_LEN] {
    let mut bytes = [0; PREFACE_LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn noise(key: &Key, initiator: bool) -> Result<Box<HandshakeState>, LinkError> {
    let prologue = preface(PROTOCOL_VERSION);
    let builder = Builder::new(PATTERN.parse().map_err(LinkError::of_noise)?);
    let builder = builder.psk(0, key.bytes()).map_err(LinkError::of_noise)?;
    let builder = builder.prologue(&prologue).map_err(LinkError::of_noise)?;
    let built = if initiator { builder.build_initiator() } else { builder.build_responder() };
    built.map(Box::new).map_err(LinkError::of_noise)
}

fn write_flight(noise: &mut HandshakeState, out: &mut Vec<u8>) -> Result<(), LinkError> {
    let mut message = [0; NOISE_MESSAGE_LEN];
    let length = noise.write_message(&[], &mut message).map_err(LinkError::of_noise)?;
    debug_assert_eq!(length, NOISE_MESSAGE_LEN);
    out.extend_from_slice(&preface(PROTOCOL_VERSION));
    out.extend_from_slice(&message);
    Ok(())
}

impl Handshake {
    fn new(stage: Stage) -> Self {
        Self { stage, received: [0; FIRST_FLIGHT_LEN], received_len: 0 }
    }

    /// The end that connects. Its first flight is appended to `out`.
    pub fn dial(key: &Key, out: &mut Vec<u8>) -> Result<Self, LinkError> {
        let mut noise = noise(key, true)?;
        write_flight(&mut noise, out)?;
        Ok(Self::new(Stage::Dialled(noise)))
    }

    /// The end that accepts the connection.
    pub fn accept(key: &Key) -> Self {
        Self::new(Stage::Accepting(key.clone()))
    }

    /// Whether this side has connected and waits for the answer.
    pub fn is_initiator(&self) -> bool {
        matches!(self.stage, Stage::Dialled(_))
    }

    /// Consumes the bytes that the handshake needs from the start of `bytes`. Returns the keys of
    /// the link when it is open.
    pub fn push(
        &mut self,
        bytes: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Box<TransportState>>, LinkError> {
        while !bytes.is_empty() {
            let needed = match self.stage {
                Stage::Done => return Err(LinkError::Closed),
                Stage::Confirming(_) => record::EMPTY_RECORD_LEN,
                _ if self.received_len < PREFACE_LEN => PREFACE_LEN,
                _ => FIRST_FLIGHT_LEN,
            };
            let (chunk, rest) = bytes.split_at(bytes.len().min(needed - self.received_len));
            self.received[self.received_len..self.received_len + chunk.len()]
                .copy_from_slice(chunk);
            self.received_len += chunk.len();
            *bytes = rest;
            if self.received_len < needed {
                break;
            } else if needed == PREFACE_LEN {
                self.check_preface(out)?;
            } else if let Some(transport) = self.on_flight(out)? {
                return Ok(Some(transport));
            }
        }
        Ok(None)
    }

    fn check_preface(&mut self, out: &mut Vec<u8>) -> Result<(), LinkError> {
        let ours = preface(PROTOCOL_VERSION);
        let theirs = &self.received[..PREFACE_LEN];
        if theirs == ours {
            return Ok(());
        }
        let (magic, version) = theirs.split_at(MAGIC.len());
        let is_responder = !self.is_initiator();
        if magic != MAGIC {
            return Err(LinkError::BadPreface);
        }
        if is_responder {
            // With this preface, the other side can also report both versions.
            out.extend_from_slice(&ours);
        }
        let theirs = u32::from_le_bytes(version.try_into().expect("half of a preface"));
        Err(LinkError::Version { theirs, ours: PROTOCOL_VERSION })
    }

    /// Handles a complete flight.
    fn on_flight(&mut self, out: &mut Vec<u8>) -> Result<Option<Box<TransportState>>, LinkError> {
        let message = &self.received[PREFACE_LEN..FIRST_FLIGHT_LEN];
        self.received_len = 0;
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Dialled(mut noise) => {
                noise.read_message(message, &mut []).map_err(|_| LinkError::WrongKey)?;
                let mut transport =
                    noise.into_transport_mode().map(Box::new).map_err(LinkError::of_noise)?;
                record::seal(&mut transport, record::KEEPALIVE, &[], out)?;
                Ok(Some(transport))
            }
            Stage::Accepting(key) => {
                let mut noise = noise(&key, false)?;
                noise.read_message(message, &mut []).map_err(|_| LinkError::WrongKey)?;
                write_flight(&mut noise, out)?;
                let transport =
                    noise.into_transport_mode().map(Box::new).map_err(LinkError::of_noise)?;
                self.stage = Stage::Confirming(transport);
                Ok(None)
            }
            Stage::Confirming(mut transport) => {
                let (length, sealed) = self.received[..record::EMPTY_RECORD_LEN].split_at(2);
                let fits = usize::from(u16::from_le_bytes([length[0], length[1]])) == sealed.len();
                let proof = fits.then(|| record::open(&mut transport, sealed).ok()).flatten();
                match proof.as_deref() {
                    Some([record::KEEPALIVE]) => Ok(Some(transport)),
                    _ => Err(LinkError::WrongKey),
                }
            }
            Stage::Done => Err(LinkError::Closed),
        }
    }
}
