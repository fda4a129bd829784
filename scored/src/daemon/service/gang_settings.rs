//! Chooses the configuration of the gang scheduler: the operator's options, within the limits of
//! this machine.

use std::time::Duration;

use score_job::gang;

use super::warn;

/// The shortest slice if the switch thread cannot use SCHED_RR. On a busy processor it may then
/// have to wait several milliseconds after its wake-up.
const MIN_NON_RT_SLICE_WINDOW: Duration = Duration::from_millis(100);

/// Chooses the configuration. `realtime` says whether this machine permits SCHED_RR, or why not.
pub fn choose(requested: Option<Duration>, realtime: Result<(), String>) -> gang::GangConfig {
    let default = gang::GangConfig::default();
    let slice = requested.unwrap_or(default.slice);
    let Err(reason) = realtime else { return gang::GangConfig { slice, ..default } };
    if slice < MIN_NON_RT_SLICE_WINDOW {
        warn(&format!(
            "-ts {}: a slice has {} ms, because this machine does not permit SCHED_RR: {reason}",
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

    // Promise of `a_slice_or_a_number_of_rows_out_of_range_is_refused_with_the_range`.
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
