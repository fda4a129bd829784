//! The device's part of an attach descriptor: the number of restarts of the job, and for each link
//! the description of its wire and the number of its descriptors.

#![forbid(unsafe_code)]

use super::engine::to_pm_error;
use super::wire;
use crate::error::{Error, PmResult};
use score_pm_reliability::packet_header::MAX_LINKS;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A link's description, and the number of its descriptors.
type LinkDescription = (Vec<u8>, usize);

pub(super) fn describe(
    restarts: u32,
    links: &[wire::WireEndpoint],
) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
    let each = links.iter().map(|link| (link.describe(), link.descriptors().count()));
    let bytes = encode(restarts, &each.collect::<Vec<_>>());
    (bytes, links.iter().flat_map(wire::WireEndpoint::descriptors).collect())
}

/// Returns `Invalid` if the bytes are not the result of `describe`.
pub(super) fn rebuild(
    bytes: &[u8],
    fds: Vec<OwnedFd>,
) -> PmResult<(u32, Vec<wire::WireEndpoint>, usize)> {
    let (restarts, described) = decode(bytes)?;
    let mut fds = fds.into_iter();
    let rebuild = |(description, count): &LinkDescription| {
        let descriptors: Vec<_> = fds.by_ref().take(*count).collect();
        wire::WireEndpoint::rebuild(description, descriptors).map_err(to_pm_error)
    };
    let links = described.iter().map(rebuild).collect::<PmResult<Vec<_>>>()?;
    if fds.next().is_some() {
        return Err(Error::Invalid);
    }
    let count = links.len();
    Ok((restarts, links, count))
}

fn encode(restarts: u32, links: &[LinkDescription]) -> Vec<u8> {
    let mut bytes = restarts.to_le_bytes().to_vec();
    for (description, descriptors) in links {
        bytes.push(*descriptors as u8);
        bytes.push(description.len() as u8);
        bytes.extend(description);
    }
    bytes
}

fn decode(bytes: &[u8]) -> PmResult<(u32, Vec<LinkDescription>)> {
    let (restarts, mut rest) = bytes.split_first_chunk().ok_or(Error::Invalid)?;
    let mut links = Vec::new();
    while !rest.is_empty() {
        let (&[descriptors, len], more) = rest.split_first_chunk().ok_or(Error::Invalid)?;
        let (description, more) = more.split_at_checked(len.into()).ok_or(Error::Invalid)?;
        links.push((description.to_vec(), descriptors.into()));
        rest = more;
    }
    if !(1..=usize::from(MAX_LINKS)).contains(&links.len()) {
        return Err(Error::Invalid);
    }
    Ok((u32::from_le_bytes(*restarts), links))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_list_is_decoded_unchanged_and_a_truncated_or_empty_list_is_refused() {
        let links = vec![(vec![1, 2, 3], 1), (vec![4; 200], 3)];
        let good = encode(2, &links);
        assert_eq!(decode(&good), Ok((2, links)));
        for len in (0..good.len()).filter(|&len| len != 9) {
            assert_eq!(decode(&good[..len]), Err(Error::Invalid), "{len}");
        }
        assert_eq!(decode(&[good.as_slice(), &[0]].concat()), Err(Error::Invalid));
    }
}
