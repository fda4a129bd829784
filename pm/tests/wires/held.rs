//! A raw socket that its opener gives to a process with fewer rights: that gets the packets of its
//! own job, whatever it does with the socket.

use crate::bed::{Host, as_root, pair};
use crate::choices;
use crate::others::send_frames;
use score_pm::device::ethernet::wire::{Choice, Endpoint, Options, Slab, Wire};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

const SECRET: u64 = 0x1122_3344_5566_7788;

/// Bytes of PM's header up to the secret, and behind it.
const BEFORE: usize = 8;
const BEHIND: usize = 48;

struct Target {
    wire: Wire,
    mac: [u8; 6],
    port: u16,
}

impl Target {
    fn open(host: &Host, choice: Choice) -> Target {
        let options = Options { secret: Some(SECRET), ..Options::over(choice, "eth0") };
        let endpoint = host.within(|| Endpoint::open(&options)).unwrap();
        let address = endpoint.address();
        let (mac, port) = (address[4..10].try_into().unwrap(), [address[10], address[11]]);
        static NOTHING: [u8; 64] = [0; 64];
        // SAFETY: never changed, and lives for ever.
        let slab = unsafe { Slab::new(NonNull::from(&NOTHING[0]), NOTHING.len()) };
        let wire = Wire::attach(endpoint, slab).unwrap();
        Target { wire, mac, port: u16::from_be_bytes(port) }
    }

    fn frame(&self, port: u16, secret: u64, mark: u8) -> Vec<u8> {
        let packet = [&[0; BEFORE][..], &secret.to_le_bytes(), &[mark; BEHIND]].concat();
        let mut frame = [&self.mac[..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5]].concat();
        frame.extend(port.to_be_bytes());
        frame.extend((packet.len() as u16).to_be_bytes());
        frame.extend(packet);
        frame
    }

    /// The marks of what comes, up to one that is the last.
    fn marks(&mut self, last: u8) -> Vec<u8> {
        let (mut marks, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while marks.last() != Some(&last) {
            assert!(Instant::now() < end, "{marks:?}");
            let mut out = [Default::default(); 16];
            let count = self.wire.receive(&mut out);
            for packet in &out[..count] {
                marks.push(self.wire.head::<64>(*packet).unwrap()[63]);
                self.wire.release(packet.buffer);
            }
        }
        marks
    }
}

/// The errno of a call on the socket's filter; 0 where it is allowed.
fn change_filter(socket: RawFd, option: i32) -> i32 {
    let mut all = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX }];
    let program = libc::sock_fprog { len: 1, filter: all.as_mut_ptr() };
    let len = size_of_val(&program) as u32;
    // SAFETY: the kernel reads the program, which lives through the call.
    let code = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const program).cast(), len)
    };
    if code == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

/// Binds a packet socket anew, to whatever comes over any interface.
fn listen_to_all(socket: RawFd) {
    // SAFETY: plain data; all zero is valid.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    let len = size_of_val(&name) as u32;
    // SAFETY: the kernel reads an address that lives through the call.
    assert_eq!(unsafe { libc::bind(socket, (&raw const name).cast(), len) }, 0);
}

#[test]
fn who_is_given_a_raw_socket_gets_the_packets_of_its_job_and_cannot_change_that() {
    const NAME: &str =
        "who_is_given_a_raw_socket_gets_the_packets_of_its_job_and_cannot_change_that";
    as_root(NAME, || {
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            if choice == Choice::Udp {
                continue;
            }
            let mut target = Target::open(&hosts[1], choice);
            let port = target.port;
            let foreign = [
                target.frame(port, SECRET + 1, 1),
                target.frame(port, SECRET ^ 1 << 63, 1),
                target.frame(port ^ 1, SECRET, 1),
                target.frame(port, SECRET, 1)[..30].to_vec(),
            ];
            let (own, last) = (target.frame(port, SECRET, 2), target.frame(port, SECRET, 3));
            let sent = [&foreign[..], &[own], &foreign[..], &[last]].concat();
            hosts[0].within(|| send_frames(&sent));
            assert_eq!(target.marks(3), [2, 3], "{choice:?}");
            if choice == Choice::Xdp {
                continue;
            }
            let socket = target.wire.fd().as_raw_fd();
            for option in [libc::SO_DETACH_FILTER, libc::SO_ATTACH_FILTER] {
                assert_eq!(change_filter(socket, option), libc::EPERM, "{option}");
            }
            listen_to_all(socket);
            hosts[0].within(|| send_frames(&sent));
            let stranger = hosts[0].within(|| UdpSocket::bind("10.9.0.1:0")).unwrap();
            stranger.send_to(&[1; 100], "10.9.0.2:7000").unwrap();
            assert_eq!(target.marks(3), [2, 3], "{choice:?}, bound anew");
            let mut out = [Default::default(); 16];
            assert_eq!(target.wire.receive(&mut out), 0);
            assert_eq!(target.wire.stats().malformed, 0, "not a single other frame");
        }
    });
}
