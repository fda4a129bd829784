//! How jobs take turns: what the operator wants, as far as this machine can.

use std::time::Duration;

use super::warn;
use crate::gang;

/// The least slice where the thread that switches is not sure of a processor when it wakes: it may
/// come several milliseconds late among busy processes.
const UNSURE: Duration = Duration::from_millis(100);

/// The slices of a service; `prompt`: it may have SCHED_RR.
pub fn choose(wanted: Option<Duration>, prompt: Result<(), String>) -> gang::Setting {
    let default = gang::Setting::default();
    let slice = wanted.unwrap_or(default.slice);
    let Err(reason) = prompt else { return gang::Setting { slice, ..default } };
    if slice < UNSURE {
        warn(&format!(
            "-ts {}: without SCHED_RR ({reason}) a slice has at least {} ms, and that is used",
            slice.as_millis(),
            UNSURE.as_millis()
        ));
    }
    gang::Setting { slice: slice.max(UNSURE), smallest: UNSURE, ..default }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slices_need_a_thread_that_wakes_in_time() {
        let ms = Duration::from_millis;
        let chosen = |wanted, prompt: bool| {
            let setting = choose(wanted, prompt.then_some(()).ok_or_else(|| "no".to_owned()));
            (setting.slice, setting.smallest)
        };
        assert_eq!(chosen(None, true), (ms(500), ms(5)));
        assert_eq!(chosen(Some(ms(5)), true), (ms(5), ms(5)));
        assert_eq!(chosen(Some(ms(5)), false), (ms(100), ms(100)));
        assert_eq!(chosen(Some(ms(2000)), false), (ms(2000), ms(100)));
    }
}
