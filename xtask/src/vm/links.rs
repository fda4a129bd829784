//! The wires between two machines: UDP sockets on loopback, on which each qemu sends its packets to
//! the other. (With qemu's connecting sockets the second qemu to start may not reach the first.)

use std::net::UdpSocket;

/// The number of wires of each machine.
const LINKS_PER_MACHINE: usize = 2;

/// The wires of all machines. A single machine has none.
pub struct VmLinks {
    /// The ports of each machine.
    ports: Vec<[u16; LINKS_PER_MACHINE]>,
}

impl VmLinks {
    /// Finds free ports for the wires.
    ///
    /// # Errors
    /// Returns an error if there is no free port.
    pub fn new(machine_count: u32) -> Result<VmLinks, String> {
        let io_error = |error: std::io::Error| format!("a wire between the machines: {error}");
        let mut bound_sockets = Vec::new();
        let mut bind_free_port = || -> Result<u16, String> {
            let socket = UdpSocket::bind("127.0.0.1:0").map_err(io_error)?;
            let port = socket.local_addr().map_err(io_error)?.port();
            bound_sockets.push(socket);
            Ok(port)
        };
        let mut ports = Vec::new();
        for _ in 0..if machine_count > 1 { machine_count } else { 0 } {
            ports.push([bind_free_port()?, bind_free_port()?]);
        }
        Ok(VmLinks { ports })
    }

    /// The arguments of qemu for machine `number`, counted from 1.
    pub fn qemu_arguments(&self, number: u32) -> Vec<String> {
        let self_index = number as usize - 1;
        let (Some(local_ports), Some(remote_ports)) =
            (self.ports.get(self_index), self.ports.get(1 - self_index))
        else {
            return Vec::new();
        };
        let mut words = Vec::new();
        for (link, (local_port, remote_port)) in local_ports.iter().zip(remote_ports).enumerate() {
            let addresses = format!("udp=127.0.0.1:{remote_port},localaddr=127.0.0.1:{local_port}");
            words.extend(["-netdev".into(), format!("socket,id=wire{link},{addresses}")]);
            let mac = format!("mac=52:54:00:00:{link:02}:{number:02}");
            words.extend([
                "-device".into(),
                format!("virtio-net-pci,netdev=wire{link},romfile=,{mac}"),
            ]);
        }
        words
    }

    /// The options of the kernel, with the machine's number if there are two machines.
    pub fn kernel_options(&self, options: &str, number: u32) -> String {
        if self.ports.is_empty() {
            return options.to_owned();
        }
        format!("{options} score.machine={number}")
    }
}

#[cfg(test)]
mod tests {
    use super::VmLinks;

    #[test]
    fn each_end_of_a_link_names_the_other_end() {
        let links = VmLinks { ports: vec![[1, 2], [3, 4]] };
        let (a, b) = (links.qemu_arguments(1).join(" "), links.qemu_arguments(2).join(" "));
        assert!(a.contains("id=wire0,udp=127.0.0.1:3,localaddr=127.0.0.1:1"), "{a}");
        assert!(b.contains("id=wire1,udp=127.0.0.1:2,localaddr=127.0.0.1:4"), "{b}");
        assert_eq!(links.kernel_options("quiet", 2), "quiet score.machine=2");
        assert_eq!(VmLinks::new(1).unwrap().kernel_options("quiet", 1), "quiet");
    }
}
