//! A virtual screen for programs with windows.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{skip, test_env};

/// The required programs with their packages.
const REQUIRED_PROGRAMS: [(&str, &str); 3] =
    [("Xvfb", "xvfb"), ("xterm", "xterm"), ("xwd", "x11-apps")];

/// An X server without a device. It ends when this value is dropped.
pub struct VirtualDisplay {
    server: Child,
    /// The value of DISPLAY.
    pub display: String,
}

impl VirtualDisplay {
    /// Starts a screen of 1024 by 768 pixels. If a program is missing, returns `None` and prints a
    /// skip with the name of the test.
    pub fn open(test: &str) -> Option<Self> {
        if let Some((_, package)) =
            REQUIRED_PROGRAMS.iter().find(|(program, _)| !test_env::is_installed(program))
        {
            skip(test, &format!("{package} is not installed"));
            return None;
        }
        // Xvfb takes the first free display number, and prints it when it is ready. Without
        // -noreset it resets when its last client disconnects, and meanwhile refuses connections.
        let mut server = Command::new("Xvfb")
            .args(["-displayfd", "1", "-screen", "0", "1024x768x24", "-nolisten", "tcp"])
            .arg("-noreset")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut number = String::new();
        let stdout = server.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut number).unwrap();
        let number: u32 = number.trim().parse().expect("a screen's number");
        Some(Self { server, display: format!(":{number}") })
    }

    /// Returns red, green and blue of each pixel of the screen.
    pub fn screenshot(&self) -> Vec<[u8; 3]> {
        let mut xwd = Command::new("xwd")
            .args(["-root", "-silent", "-display", &self.display])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut bytes = Vec::new();
        xwd.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
        assert!(xwd.wait().unwrap().success(), "xwd");
        pixels(&bytes).expect("a screenshot with 24 bits per pixel")
    }
}

/// Returns the pixels of an X window dump (version 7). The dump has a header of big-endian 32-bit
/// words, a table of colours, and rows with 4 bytes per pixel: blue, green, red.
fn pixels(dump: &[u8]) -> Option<Vec<[u8; 3]>> {
    let word = |index: usize| {
        let bytes = dump.get(index * 4..index * 4 + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?) as usize)
    };
    let [header, width, height] = [word(0)?, word(4)?, word(5)?];
    let [order, bits, row, colours] = [word(7)?, word(11)?, word(12)?, word(19)?];
    if (order, bits) != (0, 32) || row < width * 4 {
        return None;
    }
    let rows = dump.get(header + colours * 12..)?.chunks(row).take(height);
    let pixel = |bytes: &[u8]| [bytes[2], bytes[1], bytes[0]];
    Some(rows.flat_map(|row| row.chunks_exact(4).take(width).map(pixel)).collect())
}

impl Drop for VirtualDisplay {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.server.id().cast_signed()), Signal::SIGTERM);
        let _ = self.server.wait();
    }
}
