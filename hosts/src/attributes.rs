//! The attributes that records of `scorehosts.db` have (score_doc 5.6 to 7, scorehosts.db; where
//! they differ, version 7), and those that are ours.

/// How many values an attribute takes, and of which kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// One word.
    Word,
    /// One number, at least 1.
    Count,
    /// One number, fractions too.
    Number,
    /// `yes` or `no`.
    Yes,
    /// One whole number from the first to the second.
    Within(u32, u32),
    /// One number of 16 bits, hexadecimal.
    Key,
    /// Any words.
    Words,
}

/// One attribute.
#[derive(Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub takes: Takes,
}

const fn row(name: &'static str, takes: Takes) -> Known {
    Known { name, takes }
}

use Takes::{Count, Key, Number, Within, Word, Words, Yes};

/// Of hosts. `smp` and `msgbserv` are what SCore 5 called `cores` and `msgb`; `address` and
/// `bintype` are ours.
pub const HOST: &[Known] = &[
    row("cpugen", Word),
    row("speed", Number),
    row("socks", Count),
    row("cores", Count),
    row("smp", Count),
    row("network", Words),
    row("group", Words),
    row("spare", Words),
    row("msgb", Word),
    row("msgbserv", Word),
    row("address", Word),
    row("bintype", Word),
];

/// Of networks, and of a host's end of a network. `address`, `links` and `trusted` are ours, and
/// those of RDMA adapters.
pub const NETWORK: &[Known] = &[
    row("type", Word),
    row("channel", Word),
    row("netdev", Word),
    row("nsend", Word),
    row("maxnsend", Word),
    row("minnsend", Word),
    row("ackskip", Word),
    row("maxpkt", Word),
    row("maxctrl", Word),
    row("backoff", Word),
    row("checksum", Word),
    row("mtu", Count),
    row("sendbufsize", Word),
    row("recvbufsize", Word),
    row("senddesc", Word),
    row("recvdesc", Word),
    row("unit", Word),
    row("trunk", Word),
    row("slot", Word),
    row("address", Words),
    row("links", Words),
    row("trusted", Yes),
    row("device", Word),
    row("port", Within(1, 255)),
    row("gid", Within(0, 255)),
    row("partition", Key),
    row("level", Within(0, 15)),
];

/// How an RDMA adapter is addressed: for networks of type verbs only.
pub const ADDRESSING: &[&str] = &["device", "port", "gid", "partition", "level"];

/// Devices that `type` names.
pub const DEVICES: &[&str] = &["ethernet", "agent-udp", "shmem", "verbs"];

/// Devices of hardware that is no more: such records are read, and no job uses them.
pub const DEAD: &[&str] = &[
    "etherhxb",
    "ethernet-hxb",
    "myrinet",
    "myrinet2k",
    "myrinetxp",
    "sci",
    "ib-ts",
    "infiniband-fj",
];

/// The attribute of that name.
pub fn find(name: &str, among: &'static [Known]) -> Option<&'static Known> {
    among.iter().find(|known| known.name == name)
}

/// What is wrong with a value.
///
/// # Errors
/// What would be right.
pub fn check(takes: Takes, value: &str) -> Result<(), String> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let good = match takes {
        Word | Words => true,
        Count => digits && value.parse::<u32>().is_ok_and(|number| number > 0),
        Number => value.parse::<f64>().is_ok_and(|number| number.is_finite() && number >= 0.0),
        Yes => matches!(value, "yes" | "no"),
        Within(least, most) => {
            digits && value.parse::<u32>().is_ok_and(|number| (least..=most).contains(&number))
        }
        Key => u16::from_str_radix(value.strip_prefix("0x").unwrap_or(value), 16).is_ok(),
    };
    let expected = match takes {
        Count => "a whole number above 0".to_owned(),
        Number => "a number".to_owned(),
        Yes => "yes or no".to_owned(),
        Within(least, most) => format!("a whole number from {least} to {most}"),
        Key => "a hexadecimal number such as 0x8001".to_owned(),
        Word | Words => "a word".to_owned(),
    };
    if good { Ok(()) } else { Err(format!("{expected} is expected")) }
}
