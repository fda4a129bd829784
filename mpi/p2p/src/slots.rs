//! A table of numbered entries whose places are reused, for short-lived entries.

/// No place.
const NONE: u32 = u32::MAX;

/// See the [module](self). Entries are written and read in place. A move of a whole entry (as in a
/// `slab`) would load with other widths than the stores used. Store forwarding would fail, and the
/// load would wait for the cache.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    places: Vec<Place<T>>,
    first_free: u32,
    len: usize,
}

#[derive(Debug)]
struct Place<T> {
    value: T,
    is_used: bool,
    /// The next free place, if this place is free.
    next_free: u32,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), first_free: NONE, len: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry. Returns its number.
    #[inline(always)]
    pub(crate) fn add(&mut self, value: T) -> u32 {
        self.len += 1;
        let number = self.first_free;
        let Some(place) = self.places.get_mut(number as usize) else {
            return self.add_place(value);
        };
        self.first_free = place.next_free;
        place.value = value;
        place.is_used = true;
        number
    }

    #[inline(never)]
    fn add_place(&mut self, value: T) -> u32 {
        self.places.push(Place { value, is_used: true, next_free: NONE });
        // 2^32 entries do not fit into memory.
        (self.places.len() - 1) as u32
    }

    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize).filter(|place| place.is_used).map(|place| &place.value)
    }

    /// Removes an entry after `take` has moved the needed values out of it. The rest of the entry
    /// is dropped when its place is reused.
    #[inline(always)]
    pub(crate) fn remove<R>(&mut self, number: u32, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        let place = self.places.get_mut(number as usize).filter(|place| place.is_used)?;
        let taken = take(&mut place.value);
        place.is_used = false;
        place.next_free = self.first_free;
        self.first_free = number;
        self.len -= 1;
        Some(taken)
    }

    /// All entries with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let used = self.places.iter().enumerate().filter(|(_, place)| place.is_used);
        used.map(|(number, place)| (number as u32, &place.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn entries_keep_their_numbers_and_slots_are_reused(
            steps in prop::collection::vec(any::<Option<u8>>(), 0..200)
        ) {
            let (mut slots, mut model) = (Slots::new(), HashMap::new());
            let mut most = 0;
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    None => {
                        let number = slots.add(value);
                        prop_assert_eq!(model.insert(number, value), None);
                        most = most.max(model.len());
                    }
                    Some(number) => {
                        let number = u32::from(number % 16);
                        let removed = slots.remove(number, |value| *value);
                        prop_assert_eq!(removed, model.remove(&number));
                    }
                }
                prop_assert_eq!(slots.len(), model.len());
                let found: HashMap<_, _> = slots.iter().map(|(at, value)| (at, *value)).collect();
                prop_assert_eq!(&found, &model);
                prop_assert!(model.iter().all(|(at, value)| slots.get(*at) == Some(value)));
                prop_assert_eq!(slots.get(most as u32), None);
            }
            prop_assert_eq!(slots.places.len(), most);
        }
    }
}
