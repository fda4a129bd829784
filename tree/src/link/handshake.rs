//! The beginning of a link: a preface in clear text, so that another version gets a clear answer,
//! then the two messages of Noise NNpsk0, each of a fixed length. One record from the initiator
//! ends it: the first message alone could be a repetition of one that was overheard.
//!
//! | who | bytes |
//! |---|---|
//! | initiator | magic and version (8), ephemeral key and tag (48) |
//! | responder | magic and version (8), ephemeral key and tag (48) |
//! | initiator | one empty record (19) |
//!
//! Until then the responder holds at most [`FIRST`] bytes of what came.

use score_proto::PROTOCOL_VERSION;
use snow::{Builder, HandshakeState, TransportState};

use super::fault::Fault;
use super::record;
use crate::key::Key;

/// Ephemeral keys that last one link, and the cluster key mixed in before anything else.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const MAGIC: [u8; 4] = *b"SCOD";
/// Magic and version.
const PREFACE: usize = 8;
/// A public key and a tag.
const NOISE: usize = 32 + 16;
/// Bytes of either side's first flight.
pub const FIRST: usize = PREFACE + NOISE;

/// A handshake under way.
#[derive(Debug)]
pub struct Handshake {
    stage: Stage,
    came: [u8; FIRST],
    filled: usize,
}

/// Whose turn it is.
#[derive(Debug)]
enum Stage {
    /// We have dialled and wait for the answer.
    Dialled(Box<HandshakeState>),
    /// Nothing is made before the first flight is whole: a stranger costs no more than its bytes.
    Accepting(Key),
    /// The responder has answered and waits for the proof that the initiator could read it.
    Confirming(Box<TransportState>),
    /// Over, one way or the other.
    Over,
}

fn preface(version: u32) -> [u8; PREFACE] {
    let mut bytes = [0; PREFACE];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn noise(key: &Key, initiator: bool) -> Result<Box<HandshakeState>, Fault> {
    let prologue = preface(PROTOCOL_VERSION);
    let builder = Builder::new(PATTERN.parse().map_err(failed)?);
    let builder = builder.psk(0, key.bytes()).map_err(failed)?;
    let builder = builder.prologue(&prologue).map_err(failed)?;
    let built = if initiator { builder.build_initiator() } else { builder.build_responder() };
    built.map(Box::new).map_err(failed)
}

pub(super) fn failed(error: snow::Error) -> Fault {
    Fault::Noise(error.to_string())
}

fn write(noise: &mut HandshakeState, out: &mut Vec<u8>) -> Result<(), Fault> {
    let mut message = [0; NOISE];
    let length = noise.write_message(&[], &mut message).map_err(failed)?;
    debug_assert_eq!(length, NOISE);
    out.extend_from_slice(&preface(PROTOCOL_VERSION));
    out.extend_from_slice(&message);
    Ok(())
}

impl Handshake {
    fn new(stage: Stage) -> Self {
        Self { stage, came: [0; FIRST], filled: 0 }
    }

    /// The side that dialled; its first flight goes to `out`.
    pub fn dial(key: &Key, out: &mut Vec<u8>) -> Result<Self, Fault> {
        let mut noise = noise(key, true)?;
        write(&mut noise, out)?;
        Ok(Self::new(Stage::Dialled(noise)))
    }

    /// The side that was dialled.
    pub fn accept(key: &Key) -> Self {
        Self::new(Stage::Accepting(key.clone()))
    }

    /// Whether we have dialled.
    pub fn dialled(&self) -> bool {
        matches!(self.stage, Stage::Dialled(_))
    }

    /// Takes what it needs from the front of `bytes`. Gives the keys of the link once it is open.
    pub fn push(
        &mut self,
        bytes: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Box<TransportState>>, Fault> {
        while !bytes.is_empty() {
            let wanted = match self.stage {
                Stage::Over => return Err(Fault::Closed),
                Stage::Confirming(_) => record::EMPTY,
                _ if self.filled < PREFACE => PREFACE,
                _ => FIRST,
            };
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.filled));
            self.came[self.filled..self.filled + taken.len()].copy_from_slice(taken);
            self.filled += taken.len();
            *bytes = rest;
            if self.filled < wanted {
                break;
            } else if wanted == PREFACE {
                self.check_preface(out)?;
            } else if let Some(open) = self.step(out)? {
                return Ok(Some(open));
            }
        }
        Ok(None)
    }

    fn check_preface(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        let ours = preface(PROTOCOL_VERSION);
        let theirs = &self.came[..PREFACE];
        if theirs == ours {
            return Ok(());
        }
        let (magic, version) = theirs.split_at(MAGIC.len());
        let was_dialled = !self.dialled();
        if magic != MAGIC {
            return Err(Fault::Stranger);
        }
        if was_dialled {
            // So that the other side can name both versions too.
            out.extend_from_slice(&ours);
        }
        let theirs = u32::from_le_bytes(version.try_into().expect("half of a preface"));
        Err(Fault::Version { theirs, ours: PROTOCOL_VERSION })
    }

    /// The bytes that were awaited are here.
    fn step(&mut self, out: &mut Vec<u8>) -> Result<Option<Box<TransportState>>, Fault> {
        let message = &self.came[PREFACE..FIRST];
        self.filled = 0;
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Dialled(mut noise) => {
                noise.read_message(message, &mut []).map_err(|_| Fault::Key)?;
                let mut open = noise.into_transport_mode().map(Box::new).map_err(failed)?;
                record::seal(&mut open, record::ALIVE, &[], out)?;
                Ok(Some(open))
            }
            Stage::Accepting(key) => {
                let mut noise = noise(&key, false)?;
                noise.read_message(message, &mut []).map_err(|_| Fault::Key)?;
                write(&mut noise, out)?;
                let open = noise.into_transport_mode().map(Box::new).map_err(failed)?;
                self.stage = Stage::Confirming(open);
                Ok(None)
            }
            Stage::Confirming(mut open) => {
                let (length, sealed) = self.came[..record::EMPTY].split_at(2);
                let fits = usize::from(u16::from_le_bytes([length[0], length[1]])) == sealed.len();
                let proof = fits.then(|| record::open(&mut open, sealed).ok()).flatten();
                match proof.as_deref() {
                    Some([record::ALIVE]) => Ok(Some(open)),
                    _ => Err(Fault::Key),
                }
            }
            Stage::Over => Err(Fault::Closed),
        }
    }
}
