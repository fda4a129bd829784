//! The netlink requests that create the links of a LAN. This module does no I/O.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::DefaultNla;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};

use crate::lan_plan::LanPlan;
use crate::netlink::Request;

/// The index of loopback in every namespace.
const LOOPBACK: u32 = 1;
/// Indices are chosen here and not queried. Low indices may be in use, because some kernels put
/// tunnels into every new namespace.
const FIRST_NIC: u32 = 1001;
/// Both ends of a pair must have different indices. Otherwise the kernel takes up to a second to
/// notice that the link is up.
const PEER_NIC_BASE: u32 = 1011;
const FIRST_BRIDGE: u32 = 1101;
const FIRST_PORT: u32 = 1201;

/// Up to this number of hosts, each host gets static entries for the addresses of all hosts. Then
/// hosts need no neighbour discovery, and the kernel's table of 1,024 learned entries does not
/// overflow. All namespaces share this table.
const MAX_STATIC_NEIGHBOURS: u32 = 128;

const PREFIX_BITS: u8 = 16;

/// The index of a host's NIC.
pub fn nic(host: u32, link: u32) -> u32 {
    if host == 0 { FIRST_NIC + link } else { PEER_NIC_BASE + link }
}

/// The index of the switch's port to a host, in the switch's namespace.
pub fn port(plan: &LanPlan, host: u32, link: u32) -> u32 {
    FIRST_PORT + host * plan.links + link
}

fn request(what: &'static str, message: Message) -> Request {
    Request { label: what, message }
}

/// A header for a link that is up from the start.
fn link(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message.attributes = attributes;
    message
}

/// Sets a link up or down.
pub fn set_up(index: u32, up: bool) -> Request {
    let mut message = link(index, Vec::new());
    if !up {
        message.header.flags = LinkFlags::empty();
    }
    request("link", Message::SetLink(message))
}

/// Queries a link. Before the kernel answers, it completes the work that it had deferred after the
/// last change. Until then a link that has just come up drops packets, for up to a second on a busy
/// machine.
pub fn get_link(index: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    request("query", Message::GetLink(message))
}

/// Creates the switch: one bridge per network.
pub fn bridges(plan: &LanPlan) -> Vec<Request> {
    let bridge = |number: u32| {
        // This LAN has no loop, so ports forward packets at once. It has no multicast groups, so
        // the switch need not detect them.
        let data = vec![InfoBridge::ForwardDelay(0), InfoBridge::MulticastSnooping(false)];
        let info = vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(InfoData::Bridge(data))];
        let attributes = vec![
            LinkAttribute::IfName(format!("net{number}")),
            // Without a fixed address, the address would change with each port.
            LinkAttribute::Address(vec![0x02, 0x5c, 0x0f, number as u8, 0, 0]),
            LinkAttribute::Mtu(plan.mtu),
            LinkAttribute::LinkInfo(info),
        ];
        request("bridge", Message::NewLink(link(FIRST_BRIDGE + number, attributes)))
    };
    (0..plan.links).map(bridge).collect()
}

/// Creates a veth pair: `local_end` in this namespace, and the NIC in the namespace of the host.
fn veth(
    plan: &LanPlan,
    local_end: LinkMessage,
    host: u32,
    number: u32,
    peer_netns: BorrowedFd<'_>,
) -> Request {
    let mut peer_end = link(
        nic(host, number),
        vec![
            LinkAttribute::IfName(LanPlan::nic(number)),
            LinkAttribute::Address(LanPlan::mac(host, number).to_vec()),
            LinkAttribute::Mtu(plan.mtu),
            LinkAttribute::NetNsFd(peer_netns.as_raw_fd()),
        ],
    );
    // The kernel creates the far end first. The kernel cannot set the far end up before the other
    // end exists.
    peer_end.header.flags = LinkFlags::empty();
    let mut local_end = local_end;
    local_end.attributes.push(LinkAttribute::Mtu(plan.mtu));
    local_end.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer_end))),
    ]));
    request("veth", Message::NewLink(local_end))
}

/// Connects a host to the switch. Send the requests in the namespace of the switch.
pub fn switch_links(plan: &LanPlan, host: u32, host_netns: BorrowedFd<'_>) -> Vec<Request> {
    let switch_link = |number: u32| {
        let index = port(plan, host, number);
        let attributes = vec![
            LinkAttribute::IfName(format!("p{host}.{number}")),
            LinkAttribute::Controller(FIRST_BRIDGE + number),
        ];
        veth(plan, link(index, attributes), host, number, host_netns)
    };
    let limits = (0..plan.links).filter_map(|number| limit(plan, port(plan, host, number)));
    (0..plan.links).map(switch_link).chain(limits).collect()
}

/// Connects host 0 to host 1. Send the requests in the namespace of host 0.
pub fn direct_veth(plan: &LanPlan, peer_netns: BorrowedFd<'_>) -> Vec<Request> {
    let direct_link = |number: u32| {
        let attributes = vec![
            LinkAttribute::IfName(LanPlan::nic(number)),
            LinkAttribute::Address(LanPlan::mac(0, number).to_vec()),
        ];
        veth(plan, link(nic(0, number), attributes), 1, number, peer_netns)
    };
    (0..plan.links).map(direct_link).collect()
}

/// Sets up loopback.
pub fn loopback() -> Vec<Request> {
    vec![set_up(LOOPBACK, true)]
}

/// Configures the NICs of a host, once they exist.
pub fn configure_host(plan: &LanPlan, host: u32) -> Vec<Request> {
    let mut requests = loopback();
    for number in 0..plan.links {
        requests.push(set_up(nic(host, number), true));
        requests.push(address(host, number));
        requests.extend(limit(plan, nic(host, number)));
        if plan.hosts <= MAX_STATIC_NEIGHBOURS {
            let others = (0..plan.hosts).filter(|other| *other != host);
            requests.extend(others.map(|other| neighbour(nic(host, number), other, number)));
        }
    }
    requests.extend(get_nic_links(plan, host));
    requests
}

/// The queries of a host after the other ends of its links are up.
pub fn get_nic_links(plan: &LanPlan, host: u32) -> Vec<Request> {
    (0..plan.links).map(|number| get_link(nic(host, number))).collect()
}

/// The queries of the switch after all hosts have set up their ends.
pub fn get_port_links(plan: &LanPlan) -> Vec<Request> {
    let ports_of = |host| (0..plan.links).map(move |number| get_link(port(plan, host, number)));
    (0..plan.hosts).flat_map(ports_of).collect()
}

fn address(host: u32, number: u32) -> Request {
    let addr = LanPlan::address(host, number);
    let [a, b, _, _] = addr.octets();
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = PREFIX_BITS;
    message.header.index = nic(host, number);
    message.attributes = vec![
        AddressAttribute::Local(IpAddr::V4(addr)),
        AddressAttribute::Address(IpAddr::V4(addr)),
        AddressAttribute::Broadcast(Ipv4Addr::new(a, b, 255, 255)),
    ];
    request("address", Message::NewAddress(message))
}

fn neighbour(nic: u32, other: u32, number: u32) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = nic;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(LanPlan::address(other, number))),
        NeighbourAttribute::LinkLayerAddress(LanPlan::mac(other, number).to_vec()),
    ];
    request("neighbour", Message::NewNeighbour(message))
}

/// A token bucket for a link, if the plan limits links.
fn limit(plan: &LanPlan, index: u32) -> Option<Request> {
    let bytes = u32::try_from(plan.rate? / 8).ok()?;
    // The burst: 2 ms of data, and at least one segment that is split up later.
    let burst = (bytes / 500).max(plan.mtu + 64).max(70_000);
    // The queue holds 50 ms of data. More is dropped, as in a real switch.
    let queue = (bytes / 20).max(4 * burst);
    let mut message = TcMessage::default();
    message.header.index = index.cast_signed();
    message.header.parent = TcHandle::ROOT;
    message.header.handle = TcHandle { major: 1, minor: 0 };
    message.attributes = vec![
        TcAttribute::Kind("tbf".to_owned()),
        TcAttribute::Options(vec![
            TcOption::Other(DefaultNla::new(TBF_PARAMETERS, parameters(bytes, queue))),
            TcOption::Other(DefaultNla::new(TBF_BURST, burst.to_ne_bytes().to_vec())),
        ]),
    ];
    Some(request("tbf", Message::NewQueueDiscipline(message)))
}

const TBF_PARAMETERS: u16 = 1;
const TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;

/// `struct tc_tbf_qopt`: rate and peak rate of 12 bytes each (cell log, link layer, overhead, cell
/// align, minimum, rate), limit, buffer, mtu.
fn parameters(rate: u32, limit: u32) -> Vec<u8> {
    let mut bytes = vec![0; 36];
    bytes[1] = TC_LINKLAYER_ETHERNET;
    bytes[8..12].copy_from_slice(&rate.to_ne_bytes());
    bytes[24..28].copy_from_slice(&limit.to_ne_bytes());
    bytes
}
