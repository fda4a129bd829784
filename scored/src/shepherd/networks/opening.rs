//! Opening the devices of a parallel process that reach other hosts, one network set after the
//! other.

use score_pm::device::ethernet::wire::Endpoint;
use score_pm::rdma::try_out;
use score_pm::{Device, Error};
use score_proto::order::{Place, Placement};

use super::rdma::{self, Adapter, Lack, Rdma};
use super::way::{Offer, Plan};
use super::{Label, Open, Set};
use crate::raw::{Ask, Asker};

/// Names a variable of scored's own environment, for tests: the wires of its jobs lose, double and
/// reorder as it says (docs/ethernet.md).
const LOSS: &str = "SCORE_TEST_LOSS";

/// What packets of a network set carry: other sets' are strangers, too.
pub fn secret_of(job: u64, set: u32) -> u64 {
    job.wrapping_add(u64::from(set))
}

/// What the sets have in common.
pub struct Opening<'a> {
    pub placement: &'a Placement,
    pub here: &'a Place,
    pub label: Label,
    /// Who opens raw sockets that this process may not.
    pub asker: Option<&'a Asker>,
    /// Links that AF_XDP was tried on: it takes one for itself.
    pub taken: Vec<String>,
}

impl Opening<'_> {
    /// Opens what reaches other hosts, and says what that is.
    pub fn set(&mut self, number: u32, plan: Plan) -> Result<(Set, Offer), String> {
        let fault = |error: Error| {
            let (name, links) = (&plan.name, plan.links.join(", "));
            format!("network {name}: no ethernet device on {links}: {error}")
        };
        let udp = self.device(number, ("udp", &plan.links), None).map_err(fault)?;
        let offered = udp.reached().map_err(fault)?;
        let (mut raw, mut why) = (None, None);
        match &plan.raw {
            Some(Ok(links)) => match self.raw(number, links) {
                Ok((open, note)) => (raw, why) = (Some(open), note),
                Err(reason) => why = Some(reason),
            },
            Some(Err(reason)) => why = Some(reason.clone()),
            None => {}
        }
        let reached = raw.as_ref().map(Open::reached).transpose().map_err(fault)?;
        let mut verbs = None;
        let rdma = plan.rdma.as_ref().map(|plan| {
            let offered = self.rdma(number, plan).map(|(open, adapter)| {
                verbs = Some(open);
                adapter
            });
            Rdma { asked: plan.asked, offered }
        });
        let offer = Offer { rdma, raw: reached, udp: offered, why };
        let set = Set { verbs, raw, udp: Some(udp), ..Set::named(plan.name) };
        Ok((set, offer))
    }

    /// RDMA, if it can be had.
    fn rdma(&self, set: u32, plan: &rdma::Plan) -> Result<(Open, Adapter), Lack> {
        let Label { secret, stage, element, .. } = self.label;
        let number = |number: u32| number.to_string();
        // Hellos of another stage or element are strangers, too.
        let label = u64::from(stage << 16 | element & 0xffff).rotate_left(32);
        let mut options = vec![
            "-nodes".to_owned(),
            number(self.placement.nodes()),
            "-first".to_owned(),
            number(self.here.first),
            "-local".to_owned(),
            number(self.here.nodes),
            "-link".to_owned(),
            plan.address.to_string(),
            "-secret".to_owned(),
            format!("{:x}", secret_of(secret, set) ^ label),
        ];
        options.extend(plan.options.iter().cloned());
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let found = try_out(&options)?;
        plan.check(&found)?;
        let fault = |error: Error| Lack { why: format!("{}: {error}", found.wires), matters: true };
        let open = Device::open("verbs", &options)
            .and_then(|device| Open::new(device, self.here.nodes, self.here.first));
        let open = open.map_err(fault)?;
        let reached = open.reached().map_err(fault)?;
        Ok((open, Adapter { reached, fabric: found.fabric, subnet: found.subnet }))
    }

    /// AF_XDP takes a link for itself, so that it is for one process alone on its host, and for one
    /// set of that.
    fn raw(&mut self, set: u32, links: &[String]) -> Result<(Open, Option<String>), String> {
        let lonely = self.label.alone && self.here.nodes == 1;
        let alone = lonely && !links.iter().any(|link| self.taken.contains(link));
        if alone {
            self.taken.extend_from_slice(links);
        }
        let names = links.join(", ");
        let given = self.asker.map(|asker| {
            let process = |_| asker.open(Ask { set, alone });
            (0..self.here.nodes).map(process).collect::<Result<Vec<_>, _>>()
        });
        let given = given.transpose().map_err(|reason| format!("{names}: {reason}"))?;
        let wire = if alone { "raw" } else { "packet" };
        let open = self.device(set, (wire, links), given).map_err(|error| {
            let needs = if error == Error::Permission { " (CAP_NET_RAW is needed)" } else { "" };
            format!("{names}: {error}{needs}")
        })?;
        let what = if lonely { "one network set" } else { "one process" };
        let note = match alone {
            true => open.device.note().unwrap_or_default(),
            false => Some(format!("AF_XDP is for {what} on a link; AF_PACKET is used instead")),
        };
        Ok((open, note))
    }

    /// An ethernet device over these links, with sockets of its own or with those that are given.
    fn device(
        &self,
        set: u32,
        (wire, links): (&str, &[String]),
        given: Option<Vec<Vec<Endpoint>>>,
    ) -> score_pm::Result<Open> {
        let Label { secret, stage, element, .. } = self.label;
        let number = |number: u32| number.to_string();
        let options = [
            "-nodes",
            &number(self.placement.nodes()),
            "-first",
            &number(self.here.first),
            "-local",
            &number(self.here.nodes),
            "-wire",
            wire,
            "-secret",
            &format!("{:x}", secret_of(secret, set)),
            "-incarnation",
            &number(stage << 16 | element & 0xffff),
        ];
        let lossy = std::env::var(LOSS).ok();
        let loss = lossy.iter().flat_map(|loss| ["-loss", loss.as_str()]);
        let links = links.iter().flat_map(|link| ["-link", link.as_str()]);
        let options: Vec<&str> = options.into_iter().chain(links).chain(loss).collect();
        let device = match given {
            Some(given) => Device::open_over(&options, given)?,
            None => Device::open("ethernet", &options)?,
        };
        Open::new(device, self.here.nodes, self.here.first)
    }
}
