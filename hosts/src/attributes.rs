//! The attributes of records in `scorehosts.db` (score_doc 5.6 to 7, scorehosts.db; version 7 if
//! they differ), and the extensions of this project.

/// The number and kind of an attribute's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// One word.
    Word,
    /// One number, at least 1.
    Count,
    /// One number, possibly with a fraction.
    Number,
    /// `yes` or `no`.
    Bool,
    /// One whole number between these bounds, inclusive.
    IntRange(u32, u32),
    /// One number of 16 bits, hexadecimal.
    Hex16,
    /// Any words.
    Words,
}

/// The definition of one attribute.
#[derive(Debug)]
pub struct AttributeDef {
    /// The name of the attribute.
    pub name: &'static str,
    /// The type of its values.
    pub value_type: ValueType,
}

const fn attribute(name: &'static str, value_type: ValueType) -> AttributeDef {
    AttributeDef { name, value_type }
}

use ValueType::{Bool, Count, Hex16, IntRange, Number, Word, Words};

/// Attributes of hosts. `smp` and `msgbserv` are the names of `cores` and `msgb` in SCore 5.
/// `address` and `bintype` are extensions.
pub const HOST_ATTRIBUTES: &[AttributeDef] = &[
    attribute("cpugen", Word),
    attribute("speed", Number),
    attribute("socks", Count),
    attribute("cores", Count),
    attribute("smp", Count),
    attribute("network", Words),
    attribute("group", Words),
    attribute("spare", Words),
    attribute("msgb", Word),
    attribute("msgbserv", Word),
    attribute("address", Word),
    attribute("bintype", Word),
];

/// Attributes of networks, and of a host's interface to a network. `address`, `links`, `trusted`
/// and the attributes of RDMA adapters are extensions.
pub const NETWORK_ATTRIBUTES: &[AttributeDef] = &[
    attribute("type", Word),
    attribute("channel", Word),
    attribute("netdev", Word),
    attribute("nsend", Word),
    attribute("maxnsend", Word),
    attribute("minnsend", Word),
    attribute("ackskip", Word),
    attribute("maxpkt", Word),
    attribute("maxctrl", Word),
    attribute("backoff", Word),
    attribute("checksum", Word),
    attribute("mtu", Count),
    attribute("sendbufsize", Word),
    attribute("recvbufsize", Word),
    attribute("senddesc", Word),
    attribute("recvdesc", Word),
    attribute("unit", Word),
    attribute("trunk", Word),
    attribute("slot", Word),
    attribute("address", Words),
    attribute("links", Words),
    attribute("trusted", Bool),
    attribute("device", Word),
    attribute("port", IntRange(1, 255)),
    attribute("gid", IntRange(0, 255)),
    attribute("partition", Hex16),
    attribute("level", IntRange(0, 15)),
];

/// The addressing of an RDMA adapter. Valid only for networks of type verbs.
pub const RDMA_ADDRESS_ATTRIBUTES: &[&str] = &["device", "port", "gid", "partition", "level"];

/// The valid values of `type`.
pub const DEVICE_TYPES: &[&str] = &["ethernet", "agent-udp", "shmem", "verbs"];

/// Devices for obsolete hardware. Their records are accepted, but no job uses them.
pub const OBSOLETE_DEVICES: &[&str] = &[
    "etherhxb",
    "ethernet-hxb",
    "myrinet",
    "myrinet2k",
    "myrinetxp",
    "sci",
    "ib-ts",
    "infiniband-fj",
];

/// The definition of the attribute with this name.
pub fn find(name: &str, definitions: &'static [AttributeDef]) -> Option<&'static AttributeDef> {
    definitions.iter().find(|known| known.name == name)
}

/// Checks the value of an attribute.
///
/// # Errors
/// The expected form.
pub fn check(value_type: ValueType, value: &str) -> Result<(), String> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let is_valid = match value_type {
        Word | Words => true,
        Count => digits && value.parse::<u32>().is_ok_and(|number| number > 0),
        Number => value.parse::<f64>().is_ok_and(|number| number.is_finite() && number >= 0.0),
        Bool => matches!(value, "yes" | "no"),
        IntRange(min, max) => {
            digits && value.parse::<u32>().is_ok_and(|number| (min..=max).contains(&number))
        }
        Hex16 => u16::from_str_radix(value.strip_prefix("0x").unwrap_or(value), 16).is_ok(),
    };
    let expected = match value_type {
        Count => "a whole number above 0".to_owned(),
        Number => "a number".to_owned(),
        Bool => "yes or no".to_owned(),
        IntRange(min, max) => format!("a whole number from {min} to {max}"),
        Hex16 => "a hexadecimal number such as 0x8001".to_owned(),
        Word | Words => "a word".to_owned(),
    };
    if is_valid { Ok(()) } else { Err(format!("{expected} is expected")) }
}
