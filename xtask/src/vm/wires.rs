//! The wires between two machines: UDP sockets on loopback, by which each qemu hands its packets to
//! the other. (With qemu's sockets that listen and connect the second to start may lose the first.)

use std::net::UdpSocket;

/// Wires of a machine.
const COUNT: usize = 2;

/// See the module; a single machine has none.
pub struct Wires {
    /// The ports of each machine.
    ports: Vec<[u16; COUNT]>,
}

impl Wires {
    /// # Errors
    /// There is no free port.
    pub fn new(machines: u32) -> Result<Wires, String> {
        let told = |error: std::io::Error| format!("a wire between the machines: {error}");
        let mut held = Vec::new();
        let mut free = || -> Result<u16, String> {
            let socket = UdpSocket::bind("127.0.0.1:0").map_err(told)?;
            let port = socket.local_addr().map_err(told)?.port();
            held.push(socket);
            Ok(port)
        };
        let mut ports = Vec::new();
        for _ in 0..if machines > 1 { machines } else { 0 } {
            ports.push([free()?, free()?]);
        }
        Ok(Wires { ports })
    }

    /// What qemu is told, for machine `number`, from 1.
    pub fn arguments(&self, number: u32) -> Vec<String> {
        let own = number as usize - 1;
        let (Some(here), Some(there)) = (self.ports.get(own), self.ports.get(1 - own)) else {
            return Vec::new();
        };
        let mut words = Vec::new();
        for (wire, (here, there)) in here.iter().zip(there).enumerate() {
            let ends = format!("udp=127.0.0.1:{there},localaddr=127.0.0.1:{here}");
            words.extend(["-netdev".into(), format!("socket,id=wire{wire},{ends}")]);
            let mac = format!("mac=52:54:00:00:{wire:02}:{number:02}");
            words.extend([
                "-device".into(),
                format!("virtio-net-pci,netdev=wire{wire},romfile=,{mac}"),
            ]);
        }
        words
    }

    /// The kernel's options, with the number of a machine that is not alone.
    pub fn kernel_options(&self, options: &str, number: u32) -> String {
        if self.ports.is_empty() {
            return options.to_owned();
        }
        format!("{options} score.machine={number}")
    }
}

#[cfg(test)]
mod tests {
    use super::Wires;

    #[test]
    fn each_end_of_a_wire_names_the_other() {
        let wires = Wires { ports: vec![[1, 2], [3, 4]] };
        let (a, b) = (wires.arguments(1).join(" "), wires.arguments(2).join(" "));
        assert!(a.contains("id=wire0,udp=127.0.0.1:3,localaddr=127.0.0.1:1"), "{a}");
        assert!(b.contains("id=wire1,udp=127.0.0.1:2,localaddr=127.0.0.1:4"), "{b}");
        assert_eq!(wires.kernel_options("quiet", 2), "quiet score.machine=2");
        assert_eq!(Wires::new(1).unwrap().kernel_options("quiet", 1), "quiet");
    }
}
