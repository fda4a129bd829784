//! Vouchers. The keeper of the login host gets the identity of a client from the kernel and
//! certifies it in a voucher. The daemons send the voucher with the user's jobs to the hosts of the
//! jobs. The keepers of those hosts start processes as the user only if the voucher is valid. All
//! keepers of a cluster share the voucher key. No daemon has this key.

use blake3::Hash;

use crate::field::{FieldError, FieldReader, FieldWriter};

/// The length of a key in bytes.
pub const KEY_LEN: usize = 32;
/// How long a voucher is valid, in seconds.
pub const VOUCHER_TTL_S: u64 = 3600;
/// How far the clocks of two hosts may differ, in seconds.
pub const CLOCK_DIFFERENCE_WINDOW_S: u64 = 300;
/// The maximum length of a voucher in bytes.
pub const MAX_VOUCHER_LEN: usize = 1024;

/// The maximum length of a user's name in bytes.
pub const MAX_USER_NAME_LEN: usize = 256;
/// The maximum length of a host's name in bytes.
const MAX_HOST_NAME_LEN: usize = 255;
/// The maximum number of resource limits.
const MAX_LIMITS: u8 = 16;
/// The first byte of a voucher: the version of the format.
const FORMAT: u8 = 1;
const MAC_LEN: usize = 32;

/// The contexts of the keys that are derived from the cluster key.
const VOUCHER_CONTEXT: &str = "SCore 2026-11 vouchers of keepers";
const LINK_CONTEXT: &str = "SCore 2026-11 links between daemons of multi-user mode";

/// A resource limit, as in getrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimit {
    /// The number of the resource: a constant RLIMIT_*.
    pub resource: u32,
    /// The soft limit. `u64::MAX` means no limit.
    pub soft: u64,
    /// The hard limit. `u64::MAX` means no limit.
    pub hard: u64,
}

/// The contents of a voucher, which the keeper of the login host certifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voucher {
    /// The uid of the user.
    pub uid: u32,
    /// The gid of the user.
    pub gid: u32,
    /// The cookie of the login's connection. The kernel of the login host assigns each cookie only
    /// once until the next boot.
    pub session: u64,
    /// The time at which the voucher expires, in seconds since 1970.
    pub expires_at: u64,
    /// The user's name on the login host. Empty if the name services have no entry for the uid.
    pub name: Vec<u8>,
    /// The name of the login host.
    pub login_host: Vec<u8>,
    /// The resource limits of the process that has logged in.
    pub limits: Vec<ResourceLimit>,
}

/// Why a voucher is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoucherError {
    /// The bytes are not a voucher.
    Malformed,
    /// The voucher was not issued by a keeper of this cluster, or it has been modified.
    Forged,
    /// The voucher has expired.
    Expired,
    /// The voucher expires later than a voucher that any keeper can have issued by now.
    FromTheFuture,
}

impl std::fmt::Display for VoucherError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the voucher of the user's login is malformed",
            Self::Forged => "the voucher of the user's login is not of a keeper of this cluster",
            Self::Expired => "the voucher of the user's login has expired (compare the clocks)",
            Self::FromTheFuture => {
                "the voucher of the user's login ends too late (compare the clocks)"
            }
        })
    }
}

impl Voucher {
    /// Decodes a voucher without checking its issuer. Daemons use this function, because they do
    /// not have the key.
    ///
    /// # Errors
    /// The voucher is malformed.
    pub fn read_unverified(bytes: &[u8]) -> Result<Self, VoucherError> {
        let (body, _) = split_mac(bytes)?;
        read_body(body).map_err(|_| VoucherError::Malformed)
    }

    fn write_body(&self) -> Vec<u8> {
        let mut writer = FieldWriter::default();
        writer.u8(FORMAT).u32(self.uid).u32(self.gid);
        writer.u64(self.session).u64(self.expires_at);
        writer.bytes(&self.name).bytes(&self.login_host);
        writer.list(&self.limits, |writer, limit| {
            writer.u32(limit.resource).u64(limit.soft).u64(limit.hard);
        });
        writer.into_bytes()
    }
}

fn read_body(body: &[u8]) -> Result<Voucher, FieldError> {
    let mut reader = FieldReader::new(body);
    if reader.u8()? != FORMAT {
        return Err(FieldError);
    }
    let voucher = Voucher {
        uid: reader.u32()?,
        gid: reader.u32()?,
        session: reader.u64()?,
        expires_at: reader.u64()?,
        name: reader.bytes(MAX_USER_NAME_LEN)?,
        login_host: reader.bytes(MAX_HOST_NAME_LEN)?,
        limits: reader.list(MAX_LIMITS, |reader| {
            let (resource, soft, hard) = (reader.u32()?, reader.u64()?, reader.u64()?);
            Ok(ResourceLimit { resource, soft, hard })
        })?,
    };
    reader.end()?;
    Ok(voucher)
}

fn split_mac(bytes: &[u8]) -> Result<(&[u8], [u8; MAC_LEN]), VoucherError> {
    if bytes.len() > MAX_VOUCHER_LEN {
        return Err(VoucherError::Malformed);
    }
    let (body, mac) = bytes.split_last_chunk::<MAC_LEN>().ok_or(VoucherError::Malformed)?;
    Ok((body, *mac))
}

/// Derives the key of the links between daemons from the cluster key.
pub fn link_key(cluster_key: &[u8; KEY_LEN]) -> [u8; KEY_LEN] {
    blake3::derive_key(LINK_CONTEXT, cluster_key)
}

/// The key with which keepers issue and check vouchers.
#[derive(Clone)]
pub struct VoucherKey([u8; KEY_LEN]);

impl std::fmt::Debug for VoucherKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VoucherKey(hidden)")
    }
}

impl VoucherKey {
    /// Derives the voucher key from the cluster key.
    pub fn new(cluster_key: &[u8; KEY_LEN]) -> Self {
        Self(blake3::derive_key(VOUCHER_CONTEXT, cluster_key))
    }

    /// Encodes and authenticates a voucher.
    pub fn seal(&self, voucher: &Voucher) -> Vec<u8> {
        let mut bytes = voucher.write_body();
        let mac = blake3::keyed_hash(&self.0, &bytes);
        bytes.extend_from_slice(mac.as_bytes());
        bytes
    }

    /// Checks and decodes a voucher. `now` is the time in seconds since 1970.
    ///
    /// # Errors
    /// Why the voucher is not valid.
    pub fn open(&self, bytes: &[u8], now: u64) -> Result<Voucher, VoucherError> {
        let (body, mac) = split_mac(bytes)?;
        // The comparison takes constant time.
        if blake3::keyed_hash(&self.0, body) != Hash::from_bytes(mac) {
            return Err(VoucherError::Forged);
        }
        let voucher = read_body(body).map_err(|_| VoucherError::Malformed)?;
        if voucher.expires_at <= now {
            return Err(VoucherError::Expired);
        }
        if voucher.expires_at > now.saturating_add(VOUCHER_TTL_S + CLOCK_DIFFERENCE_WINDOW_S) {
            return Err(VoucherError::FromTheFuture);
        }
        Ok(voucher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000;
    const KEY: [u8; KEY_LEN] = [7; KEY_LEN];

    fn voucher() -> Voucher {
        Voucher {
            uid: 1000,
            gid: 100,
            session: 5,
            expires_at: NOW + VOUCHER_TTL_S,
            name: b"alice".to_vec(),
            login_host: b"comp0".to_vec(),
            limits: vec![ResourceLimit { resource: 7, soft: 1024, hard: u64::MAX }],
        }
    }

    #[test]
    fn a_voucher_is_accepted_by_every_keeper_of_the_cluster_and_by_no_other_keeper() {
        let bytes = VoucherKey::new(&KEY).seal(&voucher());
        assert_eq!(VoucherKey::new(&KEY).open(&bytes, NOW), Ok(voucher()));
        assert_eq!(Voucher::read_unverified(&bytes), Ok(voucher()));
        let foreign = VoucherKey::new(&[8; KEY_LEN]);
        assert_eq!(foreign.open(&bytes, NOW), Err(VoucherError::Forged));
    }

    #[test]
    fn vouchers_cannot_be_made_with_the_key_of_the_links() {
        let bytes = VoucherKey::new(&link_key(&KEY)).seal(&voucher());
        assert_eq!(VoucherKey::new(&KEY).open(&bytes, NOW), Err(VoucherError::Forged));
        let bytes = VoucherKey(link_key(&KEY)).seal(&voucher());
        assert_eq!(VoucherKey::new(&KEY).open(&bytes, NOW), Err(VoucherError::Forged));
        assert_ne!(link_key(&KEY), link_key(&[8; KEY_LEN]), "each cluster has its own");
    }

    #[test]
    fn each_error_has_its_reason_and_shows_no_key() {
        use VoucherError::{Expired, Forged, FromTheFuture, Malformed};
        for (error, why) in [
            (Malformed, "malformed"),
            (Forged, "not of a keeper"),
            (Expired, "has expired"),
            (FromTheFuture, "ends too late"),
        ] {
            assert!(error.to_string().contains(why), "{error}");
        }
        assert_eq!(format!("{:?}", VoucherKey::new(&KEY)), "VoucherKey(hidden)");
        assert!(FieldError.to_string().contains("field"));
    }

    #[test]
    fn a_voucher_of_the_longest_length_is_accepted_and_a_longer_voucher_is_malformed() {
        let open = |len| VoucherKey::new(&KEY).open(&vec![0; len], NOW);
        assert_eq!(open(MAX_VOUCHER_LEN), Err(VoucherError::Forged));
        assert_eq!(open(MAX_VOUCHER_LEN + 1), Err(VoucherError::Malformed));
    }

    #[test]
    fn a_voucher_is_valid_for_its_time_only() {
        let key = VoucherKey::new(&KEY);
        let bytes = key.seal(&voucher());
        let at = |now| key.open(&bytes, now).map(drop);
        assert_eq!(at(NOW + VOUCHER_TTL_S - 1), Ok(()));
        assert_eq!(at(NOW + VOUCHER_TTL_S), Err(VoucherError::Expired));
        assert_eq!(at(NOW - CLOCK_DIFFERENCE_WINDOW_S), Ok(()));
        assert_eq!(at(NOW - CLOCK_DIFFERENCE_WINDOW_S - 1), Err(VoucherError::FromTheFuture));
    }

    #[test]
    fn every_change_of_a_voucher_is_noticed() {
        let key = VoucherKey::new(&KEY);
        let bytes = key.seal(&voucher());
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_eq!(key.open(&changed, NOW), Err(VoucherError::Forged), "{index}");
            assert!(key.open(&bytes[..index], NOW).is_err(), "{index}");
        }
    }

    #[test]
    fn the_longest_voucher_fits() {
        let limit = ResourceLimit { resource: 1, soft: 1, hard: 1 };
        let longest = Voucher {
            name: vec![b'n'; MAX_USER_NAME_LEN],
            login_host: vec![b'h'; MAX_HOST_NAME_LEN],
            limits: vec![limit; MAX_LIMITS.into()],
            ..voucher()
        };
        let key = VoucherKey::new(&KEY);
        assert_eq!(key.open(&key.seal(&longest), NOW), Ok(longest));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_never_accepted_as_a_voucher(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            prop_assert!(VoucherKey::new(&KEY).open(&bytes, NOW).is_err());
            let _ = Voucher::read_unverified(&bytes);
        }
    }
}
