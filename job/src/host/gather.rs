//! One question to all children of a node, and the children's answers.

/// A question that can be repeated; each repetition has a number. The question is complete when
/// each child has answered or is excused.
#[derive(Debug)]
pub struct Gather<T> {
    number: u64,
    state: State,
    /// The answers of the children, by child index.
    answers: Vec<Answer<T>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    NotAsked,
    Open,
    Complete,
}

#[derive(Debug, Clone, Copy)]
enum Answer<T> {
    None,
    /// To the question of this number, and to all earlier ones.
    Given(u64, T),
    /// The child has no hosts and cannot answer.
    NotNeeded,
}

impl<T: Copy> Gather<T> {
    /// A question that has not been asked. `have_hosts`: whether each child has hosts.
    pub fn new(have_hosts: impl Iterator<Item = bool>) -> Self {
        let answer = |has_hosts| if has_hosts { Answer::None } else { Answer::NotNeeded };
        Self { number: 0, state: State::NotAsked, answers: have_hosts.map(answer).collect() }
    }

    /// Asks the question with this number. Answers to an earlier question no longer count.
    pub fn ask(&mut self, number: u64) {
        (self.number, self.state) = (number, State::Open);
    }

    /// Asks the question with the next number.
    pub fn ask_next(&mut self) {
        self.ask(self.number + 1);
    }

    /// Withdraws the question.
    pub fn cancel(&mut self) {
        self.state = State::NotAsked;
    }

    /// The number of the last question.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the question is asked and not complete.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the last question is complete.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// A child answers the question with this number, possibly before it is asked here. Of several
    /// answers, the first answer to the latest question counts.
    pub fn on_answer(&mut self, child_index: usize, number: u64, value: T) {
        match self.answers.get_mut(child_index) {
            Some(Answer::Given(last, _)) if *last >= number => {}
            Some(answer @ (Answer::None | Answer::Given(..))) => {
                *answer = Answer::Given(number, value);
            }
            Some(Answer::NotNeeded) | None => {}
        }
    }

    /// Whether a child has answered the last question, or need not answer.
    pub fn has_answered(&self, child_index: usize) -> bool {
        match self.answers.get(child_index) {
            Some(Answer::Given(number, _)) => *number >= self.number,
            Some(Answer::NotNeeded) => true,
            Some(Answer::None) | None => false,
        }
    }

    /// If the question is complete now, returns the last answer of each child, with its number. The
    /// answer of an excused child may be to an earlier question.
    pub fn take(&mut self, is_excused: impl Fn(usize) -> bool) -> Option<Vec<(u64, T)>> {
        let is_answered = |child_index| self.has_answered(child_index) || is_excused(child_index);
        if !self.is_open() || !(0..self.answers.len()).all(is_answered) {
            return None;
        }
        self.state = State::Complete;
        let given = |answer: &Answer<T>| match answer {
            Answer::Given(number, value) => Some((*number, *value)),
            Answer::None | Answer::NotNeeded => None,
        };
        Some(self.answers.iter().filter_map(given).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_completes_once_after_all_children_have_answered_or_left() {
        let mut gather = Gather::new([false, true, true].into_iter());
        gather.on_answer(1, 4, 'a');
        assert_eq!(gather.take(|_| true), None, "not asked");
        gather.ask(4);
        assert_eq!(gather.take(|_| false), None);
        gather.on_answer(2, 3, 'b');
        assert_eq!(gather.take(|_| false), None, "an answer to an earlier question");
        assert_eq!(gather.take(|child_index| child_index == 2), Some(vec![(4, 'a'), (3, 'b')]));
        assert_eq!(gather.take(|_| true), None, "complete before");
        gather.ask_next();
        gather.on_answer(1, 6, 'c');
        gather.on_answer(2, 5, 'd');
        gather.on_answer(2, 5, 'e');
        assert_eq!(gather.take(|_| false), Some(vec![(6, 'c'), (5, 'd')]));
        gather.ask_next();
        gather.cancel();
        assert_eq!(gather.take(|_| true), None);
    }
}
