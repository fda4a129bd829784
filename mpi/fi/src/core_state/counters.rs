//! The values of counters.

use score_p2p::Counted;

use super::CoreState;

/// The state of a counter. `value` and `errors` are added to the counts of the engine; they wrap
/// around.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterState {
    value: u64,
    errors: u64,
    /// The endpoints, and the kind of operations that is counted for each.
    bound: Vec<(usize, Counted)>,
}

impl CoreState {
    /// The counts of the engine for a counter: operations that have succeeded, and operations that
    /// have failed.
    fn counted(&self, bound: &[(usize, Counted)]) -> (u64, u64) {
        bound.iter().fold((0, 0), |(done, failed), (endpoint, counted)| {
            let count = self.endpoints[*endpoint].engine.count(*counted);
            (done + count.done, failed + count.failed)
        })
    }

    /// The value and the errors of a counter.
    pub(crate) fn counter(&self, number: usize) -> (u64, u64) {
        let Some(Some(state)) = self.counters.get(number) else { return (0, 0) };
        let (done, failed) = self.counted(&state.bound);
        (state.value.wrapping_add(done), state.errors.wrapping_add(failed))
    }

    /// Sets the value and the errors of a counter, and the operations that it counts from now on.
    fn set_counter(
        &mut self,
        number: usize,
        (value, errors): (u64, u64),
        bound: Vec<(usize, Counted)>,
    ) {
        let (done, failed) = self.counted(&bound);
        if let Some(state) = self.counters.get_mut(number) {
            let (value, errors) = (value.wrapping_sub(done), errors.wrapping_sub(failed));
            *state = Some(CounterState { value, errors, bound });
        }
    }

    /// Changes the value and the errors of a counter.
    pub(crate) fn change_counter(
        &mut self,
        number: usize,
        change: impl FnOnce((u64, u64)) -> (u64, u64),
    ) {
        if let Some(Some(state)) = self.counters.get(number) {
            let bound = state.bound.clone();
            self.set_counter(number, change(self.counter(number)), bound);
        }
    }

    /// Makes a counter count further operations of endpoints.
    pub(crate) fn bind_counter(&mut self, number: usize, counted: &[(usize, Counted)]) {
        if let Some(Some(state)) = self.counters.get(number) {
            let mut bound = state.bound.clone();
            let is_new = |one: &&(usize, Counted)| !state.bound.contains(one);
            bound.extend(counted.iter().filter(is_new));
            self.set_counter(number, self.counter(number), bound);
        }
    }

    /// Unbinds a closed endpoint from its counters, which keep their values.
    pub(crate) fn unbind_counters(&mut self, endpoint: usize) {
        for number in 0..self.counters.len() {
            if let Some(state) = &self.counters[number] {
                let mut bound = state.bound.clone();
                bound.retain(|(of, _)| *of != endpoint);
                self.set_counter(number, self.counter(number), bound);
            }
        }
    }
}
