//! A screen that nobody looks at, for programs with windows.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{scene, skip};

/// What it takes, by program and package.
const NEEDS: [(&str, &str); 3] = [("Xvfb", "xvfb"), ("xterm", "xterm"), ("xwd", "x11-apps")];

/// An X server without a device. It ends when this is dropped.
pub struct Screen {
    server: Child,
    /// What DISPLAY says of it.
    pub display: String,
}

impl Screen {
    /// A screen of 1024 by 768; None, and a skip under this name, where a program is missing.
    pub fn open(test: &str) -> Option<Self> {
        if let Some((_, package)) = NEEDS.iter().find(|(program, _)| !scene::have(program)) {
            skip(test, &format!("{package} is not installed"));
            return None;
        }
        // It takes the first number that is free, and tells which when it is ready. Without
        // -noreset it begins anew when its last client goes, and refuses who comes meanwhile.
        let mut server = Command::new("Xvfb")
            .args(["-displayfd", "1", "-screen", "0", "1024x768x24", "-nolisten", "tcp"])
            .arg("-noreset")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut number = String::new();
        let said = server.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut number).unwrap();
        let number: u32 = number.trim().parse().expect("a screen's number");
        Some(Self { server, display: format!(":{number}") })
    }

    /// The picture, as red, green and blue of each of its points.
    pub fn picture(&self) -> Vec<[u8; 3]> {
        let mut shot = Command::new("xwd")
            .args(["-root", "-silent", "-display", &self.display])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut bytes = Vec::new();
        shot.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
        assert!(shot.wait().unwrap().success(), "xwd");
        points(&bytes).expect("a picture of 24 bits")
    }
}

/// What an X window dump (version 7) shows. Its header is words of 32 bits, big end first; a table
/// of colours follows, and rows of 4 bytes a point: blue, green, red.
fn points(dump: &[u8]) -> Option<Vec<[u8; 3]>> {
    let word = |at: usize| {
        let bytes = dump.get(at * 4..at * 4 + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?) as usize)
    };
    let [header, width, height] = [word(0)?, word(4)?, word(5)?];
    let [order, bits, row, colours] = [word(7)?, word(11)?, word(12)?, word(19)?];
    if (order, bits) != (0, 32) || row < width * 4 {
        return None;
    }
    let rows = dump.get(header + colours * 12..)?.chunks(row).take(height);
    let point = |bytes: &[u8]| [bytes[2], bytes[1], bytes[0]];
    Some(rows.flat_map(|row| row.chunks_exact(4).take(width).map(point)).collect())
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.server.id().cast_signed()), Signal::SIGTERM);
        let _ = self.server.wait();
    }
}
