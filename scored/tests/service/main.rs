//! A service and its daemons with clients and servers other than scrun and scored. `attacks` is a
//! separate test program, because it measures how long users wait.

mod clients;
#[path = "../driver/mod.rs"]
mod driver;
mod make_key;
mod stale_incarnation;
