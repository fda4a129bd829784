//! Attacks on a service of two hosts by one of its users, who uses the protocol without scrun. Each
//! test is one attack. It must gain nothing, and must not affect other users.
//! docs/admin/security.md lists what a user may do.

#[path = "../driver/mod.rs"]
mod driver;
mod floods;
mod keeper;
mod logins;
mod privileges;
mod shepherds;
mod support;
