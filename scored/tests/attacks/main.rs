//! Attacks on a service of two hosts by one of its users, who speaks the protocol without scrun.
//! Each test is one attack: it gains nothing, and other users do not notice it. docs/security.md
//! lists what a user may do.

#[path = "../driver/mod.rs"]
mod driver;
mod floods;
mod keeper;
mod logins;
mod privileges;
mod shepherds;
mod support;
