//! Tests a raw socket that its opener passes to a process with fewer rights. That process receives
//! only packets of its own job, whatever it does with the socket.

use super::bed::{Host, as_root, pair};
use super::choices;
use super::foreign_traffic::send_frames;
use score_pm::wire::{SendMemory, Wire, WireEndpoint, WireOptions, WirePreference};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

const SECRET: u64 = 0x1122_3344_5566_7788;

/// The lengths of the parts of a packet in front of the secret and after it.
const PREFIX_LEN: usize = 8;
const SUFFIX_LEN: usize = 48;

struct Target {
    wire: Wire,
    mac: [u8; 6],
    port: u16,
}

impl Target {
    fn open(host: &Host, choice: WirePreference) -> Target {
        let options =
            WireOptions { secret: Some(SECRET), ..WireOptions::on_interface(choice, "eth0") };
        let endpoint = host.within(|| WireEndpoint::open(&options)).unwrap();
        let address = endpoint.address();
        let (mac, port) = (address[4..10].try_into().unwrap(), [address[10], address[11]]);
        static NOTHING: [u8; 64] = [0; 64];
        // SAFETY: this is a static, which never changes.
        let slab = unsafe { SendMemory::new(NonNull::from(&NOTHING[0]), NOTHING.len()) };
        let wire = Wire::attach(endpoint, slab).unwrap();
        Target { wire, mac, port: u16::from_be_bytes(port) }
    }

    fn frame(&self, port: u16, secret: u64, mark: u8) -> Vec<u8> {
        let packet = [&[0; PREFIX_LEN][..], &secret.to_le_bytes(), &[mark; SUFFIX_LEN]].concat();
        let mut frame = [&self.mac[..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5]].concat();
        frame.extend(port.to_be_bytes());
        frame.extend((packet.len() as u16).to_be_bytes());
        frame.extend(packet);
        frame
    }

    /// Receives packets up to the mark `last`, and returns their marks.
    fn receive_marks(&mut self, last: u8) -> Vec<u8> {
        let (mut marks, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while marks.last() != Some(&last) {
            assert!(Instant::now() < end, "{marks:?}");
            let mut out = [Default::default(); 16];
            let count = self.wire.receive(&mut out);
            for packet in &out[..count] {
                marks.push(self.wire.copy_prefix::<64>(*packet).unwrap()[63]);
                self.wire.release(packet.buffer);
            }
        }
        marks
    }
}

/// Tries to change the socket's filter. Returns the errno, or 0 if the call succeeds.
fn change_filter(socket: RawFd, option: i32) -> i32 {
    let mut filter = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX }];
    let program = libc::sock_fprog { len: 1, filter: filter.as_mut_ptr() };
    let len = size_of_val(&program) as u32;
    // SAFETY: the kernel reads the program, which outlives the call.
    let code = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const program).cast(), len)
    };
    if code == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

/// Binds a packet socket again, to all packets of all interfaces.
fn listen_to_all(socket: RawFd) {
    // SAFETY: this is plain data, for which all zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    let len = size_of_val(&address) as u32;
    // SAFETY: the kernel reads an address that outlives the call.
    assert_eq!(unsafe { libc::bind(socket, (&raw const address).cast(), len) }, 0);
}

// Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
#[test]
fn a_process_with_a_locked_raw_socket_gets_only_its_own_jobs_packets() {
    const NAME: &str = "a_process_with_a_locked_raw_socket_gets_only_its_own_jobs_packets";
    as_root(NAME, || {
        let hosts = pair(1500);
        for choice in choices(NAME, &hosts, 1500) {
            if choice == WirePreference::Udp {
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
            let (accepted, last) = (target.frame(port, SECRET, 2), target.frame(port, SECRET, 3));
            let sent = [&foreign[..], &[accepted], &foreign[..], &[last]].concat();
            hosts[0].within(|| send_frames(&sent));
            assert_eq!(target.receive_marks(3), [2, 3], "{choice:?}");
            if choice == WirePreference::Xdp {
                continue;
            }
            let socket = target.wire.fd().as_raw_fd();
            for option in [libc::SO_DETACH_FILTER, libc::SO_ATTACH_FILTER] {
                assert_eq!(change_filter(socket, option), libc::EPERM, "{option}");
            }
            listen_to_all(socket);
            hosts[0].within(|| send_frames(&sent));
            let foreign_socket = hosts[0].within(|| UdpSocket::bind("10.9.0.1:0")).unwrap();
            foreign_socket.send_to(&[1; 100], "10.9.0.2:7000").unwrap();
            assert_eq!(target.receive_marks(3), [2, 3], "{choice:?}, bound again");
            let mut out = [Default::default(); 16];
            assert_eq!(target.wire.receive(&mut out), 0);
            assert_eq!(target.wire.stats().malformed, 0, "a foreign frame was received");
        }
    });
}
