//! The configuration of the gang scheduler: the operator's choice, within the limits of this
//! machine.

use std::time::Duration;

use score_job::gang;

use super::warn;

/// The shortest slice if the switch thread cannot have SCHED_RR. Among busy processes it may then
/// get a processor several milliseconds after its wake-up.
const MIN_NON_RT_SLICE_WINDOW: Duration = Duration::from_millis(100);

/// The configuration of a service's gang scheduler. `realtime` says whether it may use SCHED_RR.
pub fn choose(requested: Option<Duration>, realtime: Result<(), String>) -> gang::GangConfig {
    let default = gang::GangConfig::default();
    let slice = requested.unwrap_or(default.slice);
    let Err(reason) = realtime else { return gang::GangConfig { slice, ..default } };
    if slice < MIN_NON_RT_SLICE_WINDOW {
        warn(&format!(
            "-ts {}: without SCHED_RR ({reason}) a slice has at least {} ms, and that is used",
            slice.as_millis(),
            MIN_NON_RT_SLICE_WINDOW.as_millis()
        ));
    }
    gang::GangConfig {
        slice: slice.max(MIN_NON_RT_SLICE_WINDOW),
        min_slice: MIN_NON_RT_SLICE_WINDOW,
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slices_need_realtime_priority() {
        let ms = Duration::from_millis;
        let choose_ms = |requested, realtime: bool| {
            let config = choose(requested, realtime.then_some(()).ok_or_else(|| "no".to_owned()));
            (config.slice, config.min_slice)
        };
        assert_eq!(choose_ms(None, true), (ms(500), ms(5)));
        assert_eq!(choose_ms(Some(ms(5)), true), (ms(5), ms(5)));
        assert_eq!(choose_ms(Some(ms(5)), false), (ms(100), ms(100)));
        assert_eq!(choose_ms(Some(ms(2000)), false), (ms(2000), ms(100)));
    }
}
