//! The owner of a job as an argument on the command line of a shepherd or supervisor. A message
//! cannot contain the owner, because the process becomes the user before it decodes any message.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use score_proto::job_control::{Limit, Owner};
use score_proto::message::OsBytes;

/// Formats an owner as `UID:GID:RESOURCE=SOFT/HARD,...:NAME`.
pub fn write(owner: &Owner) -> OsString {
    let limit = |limit: &Limit| format!("{}={}/{}", limit.resource, limit.soft, limit.hard);
    let limits: Vec<String> = owner.limits.iter().map(limit).collect();
    let mut word = format!("{}:{}:{}:", owner.uid, owner.gid, limits.join(",")).into_bytes();
    word.extend(owner.name.0.iter().filter(|byte| **byte != 0));
    OsString::from_vec(word)
}

/// Parses the format of [`write()`].
///
/// # Errors
/// One line that quotes the argument.
pub fn read(word: &OsStr) -> Result<Owner, String> {
    let format_error = || format!("-owner {}: not UID:GID:LIMITS:NAME", word.to_string_lossy());
    let mut parts = word.as_bytes().splitn(4, |byte| *byte == b':');
    let mut text = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let (uid, gid, limits) = match (text(), text(), text()) {
        (Some(uid), Some(gid), Some(limits)) => (uid, gid, limits),
        _ => return Err(format_error()),
    };
    let limit = |word: &str| -> Option<Limit> {
        let (resource, values) = word.split_once('=')?;
        let (soft, hard) = values.split_once('/')?;
        let (soft, hard) = (soft.parse().ok()?, hard.parse().ok()?);
        Some(Limit { resource: resource.parse().ok()?, soft, hard })
    };
    let limits: Option<_> = limits.split(',').filter(|word| !word.is_empty()).map(limit).collect();
    Ok(Owner {
        uid: uid.parse().map_err(|_| format_error())?,
        gid: gid.parse().map_err(|_| format_error())?,
        name: OsBytes(parts.next().ok_or_else(format_error)?.to_vec()),
        limits: limits.ok_or_else(format_error)?,
        // The shepherd needs no voucher.
        voucher: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_with_any_name_is_decoded_unchanged() {
        let limit = Limit { resource: 7, soft: 1024, hard: u64::MAX };
        for (name, limits) in [("", vec![]), ("a:b,c=\u{e9}", vec![limit, limit])] {
            let name = OsBytes(name.as_bytes().to_vec());
            let owner = Owner { uid: 1, gid: u32::MAX, name, limits, voucher: Vec::new() };
            assert_eq!(read(&write(&owner)), Ok(owner));
        }
        for wrong in ["", "1:2:3", "1:2:x:", "a:2::", "1:2:3=4:n", "-1:2::"] {
            assert!(read(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
