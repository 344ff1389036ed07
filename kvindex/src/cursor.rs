//! Which messages of a source to apply, and when to forget what it said.
//!
//! A source is one rank of one life of an endpoint. Its publisher numbers messages from 0, and nothing repeats them
//! unless a replay is asked for:
//!
//! ```text
//!            in order                     gap                            gap, no replay
//! live ------- apply ----> live ---- hold, ask replay ----> catching up   live -- clear, apply --> live
//!                                                             |  replayed in order: apply
//!                                                             |  replay lost some:  clear, apply
//!                                                             '- end or failure: back to live, then the held ones
//! ```
//!
//! A number that goes back is a copy or a new life of the publisher. It is a new life when the message is younger than
//! the last one by the engine's own clock, when it is number 0 and no clock says that it is old, when it is far back,
//! or when its successor follows it. Then everything is forgotten first. Held messages overlap with a replay, so only
//! the clock counts for them. The index is a hint: the rules may forget too much, and never too little.

use crate::events::REPLAY_END;

/// Numbers that a late copy may lag behind. A publisher that restarted is seen at once beyond it.
const REORDER: u64 = 64;

/// What to do with a message, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Forget everything that this source said.
    pub clear: bool,
    /// Ask the engine to repeat its messages from this number on.
    pub ask_replay: Option<u64>,
    /// What happens to the message itself.
    pub message: Fate,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Apply it now.
    Apply,
    /// It was applied before, or it is older than what was applied.
    #[default]
    Drop,
    /// Keep it until the replay has ended, then offer it again, in the order of arrival.
    Hold,
}

/// Counts of a source, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CursorCounts {
    /// Messages applied.
    pub applied: u64,
    /// Messages dropped as copies.
    pub duplicates: u64,
    /// Times that a number was missing.
    pub gaps: u64,
    /// Replays asked for.
    pub replays: u64,
    /// New lives of the publisher that were noticed.
    pub restarts: u64,
    /// Times that everything was forgotten because something was missed.
    pub resets: u64,
}

/// Position in the messages of one source.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    replay: bool,
    /// Number that comes next; `None` before the first message.
    next: Option<u64>,
    /// Engine clock of the last message that was applied.
    published: Option<f64>,
    catching_up: bool,
    /// The position at which a replay was already tried without filling the gap.
    tried: Option<u64>,
    /// The present replay has brought something.
    repeated: bool,
    /// Last copy that was dropped: its successor proves a restart.
    stray: Option<u64>,
    counts: CursorCounts,
}

impl Cursor {
    /// A source whose engine answers replays or does not.
    pub fn new(replay: bool) -> Cursor {
        Cursor {
            replay,
            ..Cursor::default()
        }
    }

    /// Goes on after a snapshot that holds everything up to `last`, which was published at `published` by the engine's
    /// clock. That it was this publisher who said so must be known: by a message with this number and time, or from
    /// somebody who hears the same publisher.
    pub fn resume(&mut self, last: u64, published: f64) {
        *self = Cursor {
            replay: self.replay,
            counts: self.counts,
            next: last.checked_add(1),
            published: Some(published).filter(|time| !time.is_nan()),
            ..Cursor::default()
        };
    }

    /// Whether `last` is the last message that counts, and was published at `published`. A time that is none is never
    /// the same.
    pub fn stands_at(&self, last: u64, published: f64) -> bool {
        self.last() == Some(last) && self.published == Some(published)
    }

    /// The last message that counts, for a snapshot.
    pub fn last(&self) -> Option<u64> {
        self.next.and_then(|next| next.checked_sub(1))
    }

    /// The engine's clock in that message, if it told.
    pub fn published(&self) -> Option<f64> {
        self.published
    }

    /// Whether a replay is awaited.
    pub fn catching_up(&self) -> bool {
        self.catching_up
    }

    /// What happened so far.
    pub fn counts(&self) -> CursorCounts {
        self.counts
    }

    /// The subscription has (re)started: where a replay should begin, if this source has replays.
    ///
    /// It begins at the last message that was applied: if that one has another time now, the publisher is a new one.
    pub fn connected(&mut self) -> Option<u64> {
        let from = self.last().unwrap_or(0);
        (self.replay && !self.catching_up).then(|| self.ask(from))
    }

    fn ask(&mut self, from: u64) -> u64 {
        self.counts.replays += 1;
        self.catching_up = true;
        self.tried = Some(from);
        self.repeated = false;
        from
    }

    /// A message of the live stream. `published` is the engine's clock in it, if it could be read.
    pub fn live(&mut self, sequence: u64, published: Option<f64>) -> Verdict {
        self.offered(sequence, published, false)
    }

    /// A message of the live stream that was held and is offered again after [`Cursor::replay_over`].
    pub fn held(&mut self, sequence: u64, published: Option<f64>) -> Verdict {
        self.offered(sequence, published, true)
    }

    fn offered(&mut self, sequence: u64, published: Option<f64>, held: bool) -> Verdict {
        if sequence == REPLAY_END {
            return self.drop_copy(None);
        }
        if self.catching_up {
            return Verdict {
                message: Fate::Hold,
                ..Verdict::default()
            };
        }
        let Some(next) = self.next else {
            return self.first(sequence, published);
        };
        if sequence == next {
            return self.apply(sequence, published, false);
        }
        if sequence < next {
            return self.backwards(sequence, published, next, held);
        }
        self.counts.gaps += 1;
        if self.replay && self.tried != Some(next) {
            let from = self.ask(next);
            return hold(false, from);
        }
        self.counts.resets += 1;
        self.apply(sequence, published, true)
    }

    fn first(&mut self, sequence: u64, published: Option<f64>) -> Verdict {
        if self.replay && sequence > 0 && self.tried != Some(0) {
            let from = self.ask(0);
            return hold(false, from);
        }
        self.apply(sequence, published, false)
    }

    fn backwards(
        &mut self,
        sequence: u64,
        published: Option<f64>,
        next: u64,
        held: bool,
    ) -> Verdict {
        let younger = match (published, self.published) {
            (Some(this), Some(last)) if !this.is_nan() => Some(this > last),
            _ => None,
        };
        let follows = self
            .stray
            .is_some_and(|stray| stray.checked_add(1) == Some(sequence));
        let zero = sequence == 0 && next > 1 && younger.is_none();
        let far = next - sequence > REORDER;
        if younger != Some(true) && (held || !(follows || zero || far)) {
            return self.drop_copy((!held).then_some(sequence));
        }
        self.restart(sequence, published)
    }

    fn restart(&mut self, sequence: u64, published: Option<f64>) -> Verdict {
        self.counts.restarts += 1;
        self.tried = None;
        if self.replay && sequence > 0 {
            self.next = None;
            self.published = None;
            let from = self.ask(0);
            return hold(true, from);
        }
        self.apply(sequence, published, true)
    }

    fn drop_copy(&mut self, stray: Option<u64>) -> Verdict {
        self.counts.duplicates += 1;
        self.stray = stray;
        Verdict::default()
    }

    fn apply(&mut self, sequence: u64, published: Option<f64>, clear: bool) -> Verdict {
        self.counts.applied += 1;
        self.next = sequence.checked_add(1);
        self.stray = None;
        if published.is_some_and(|time| !time.is_nan()) {
            self.published = published;
        }
        Verdict {
            clear,
            ask_replay: None,
            message: Fate::Apply,
        }
    }

    /// A message that a replay repeats. A new ask replaces the replay that is under way.
    pub fn replayed(&mut self, sequence: u64, published: Option<f64>) -> Verdict {
        self.repeated = true;
        match self.next {
            _ if !self.catching_up || sequence == REPLAY_END => self.drop_copy(None),
            None => self.apply(sequence, published, false),
            Some(next) if sequence < next => {
                let last = sequence.checked_add(1) == Some(next);
                match (published, self.published) {
                    (Some(this), Some(known)) if last && this > known => {
                        self.counts.restarts += 1;
                        self.next = None;
                        self.published = None;
                        let from = self.ask(0);
                        Verdict {
                            clear: true,
                            ask_replay: Some(from),
                            message: Fate::Drop,
                        }
                    }
                    _ => self.drop_copy(None),
                }
            }
            Some(next) if sequence == next => self.apply(sequence, published, false),
            Some(_) => {
                self.counts.resets += 1;
                self.apply(sequence, published, true)
            }
        }
    }

    /// The engine said that the replay is complete; [`Cursor::replay_over`] comes next. True if everything must be
    /// forgotten: who does not have the last message that was applied, and nothing younger, is a new publisher that has
    /// said nothing yet.
    pub fn replay_done(&mut self) -> bool {
        let asked_for_last = self.last().is_some() && self.tried == self.last();
        let new = self.catching_up && asked_for_last && !self.repeated;
        if new {
            self.counts.restarts += 1;
            self.next = None;
            self.published = None;
            self.stray = None;
            // From its beginning it may be asked again.
            self.tried = None;
        }
        new
    }

    /// The replay has ended, failed or was given up: offer what was held to [`Cursor::held`].
    ///
    /// If the gap is still there, the first held message finds it, and everything is forgotten then.
    pub fn replay_over(&mut self) {
        self.catching_up = false;
        // A position that moved may be asked for again; one that did not would be asked for without end.
        self.tried = self.tried.filter(|tried| self.next.unwrap_or(0) == *tried);
    }

    /// Messages were lost on our side or could not be read, so what follows is a gap of unknown size.
    ///
    /// Everything that this source said must be forgotten now; the next message is applied whatever its number.
    pub fn lost(&mut self) -> Verdict {
        self.counts.resets += 1;
        self.catching_up = false;
        self.next = None;
        self.published = None;
        self.stray = None;
        self.tried = Some(0);
        Verdict {
            clear: true,
            ..Verdict::default()
        }
    }
}

fn hold(clear: bool, from: u64) -> Verdict {
    Verdict {
        clear,
        ask_replay: Some(from),
        message: Fate::Hold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPLY: Verdict = Verdict {
        clear: false,
        ask_replay: None,
        message: Fate::Apply,
    };
    const DROP: Verdict = Verdict {
        clear: false,
        ask_replay: None,
        message: Fate::Drop,
    };
    const HOLD: Verdict = Verdict {
        clear: false,
        ask_replay: None,
        message: Fate::Hold,
    };
    const RESET: Verdict = Verdict {
        clear: true,
        ask_replay: None,
        message: Fate::Apply,
    };

    fn ask(from: u64) -> Verdict {
        Verdict {
            clear: false,
            ask_replay: Some(from),
            message: Fate::Hold,
        }
    }

    #[test]
    fn without_replay_a_gap_forgets_and_goes_on_and_a_restart_is_seen() {
        let mut cursor = Cursor::new(false);
        let verdicts = [5, 6, 9, 9, 7, 0, 1].map(|sequence| cursor.live(sequence, None));
        assert_eq!(verdicts, [APPLY, APPLY, RESET, DROP, DROP, RESET, APPLY]);
        let counts = cursor.counts();
        assert_eq!((counts.gaps, counts.duplicates, counts.restarts), (1, 2, 1));
        assert_eq!((counts.applied, counts.resets, counts.replays), (5, 1, 0));
        assert_eq!(cursor.last(), Some(1));
    }

    #[test]
    fn a_stream_may_be_joined_late() {
        assert_eq!(Cursor::new(false).live(17, None), APPLY);
        assert_eq!(Cursor::new(true).live(0, None), APPLY);
        assert_eq!(Cursor::new(true).live(17, None), ask(0));
    }

    #[test]
    fn a_replay_fills_a_gap_and_what_was_held_continues_it() {
        let mut cursor = Cursor::new(true);
        assert_eq!(cursor.live(0, Some(1.0)), APPLY);
        assert_eq!(cursor.live(3, Some(4.0)), ask(1));
        assert_eq!(cursor.live(4, Some(5.0)), HOLD);
        assert_eq!(
            [1, 2, 3].map(|n| cursor.replayed(n, Some(1.0 + n as f64))),
            [APPLY; 3]
        );
        cursor.replay_over();
        assert_eq!(cursor.held(3, Some(4.0)), DROP);
        assert_eq!(cursor.held(4, Some(5.0)), APPLY);
        assert_eq!(cursor.live(5, Some(6.0)), APPLY);
        assert_eq!(cursor.counts().resets, 0);
    }

    #[test]
    fn copies_that_were_held_are_no_restart_even_from_zero_and_far_back() {
        let mut cursor = Cursor::new(true);
        assert_eq!(cursor.connected(), Some(0));
        assert_eq!(cursor.live(0, None), HOLD);
        assert_eq!(cursor.live(1, None), HOLD);
        for sequence in 0..200 {
            assert_eq!(cursor.replayed(sequence, None), APPLY);
        }
        cursor.replay_over();
        assert_eq!([0, 1].map(|n| cursor.held(n, None)), [DROP, DROP]);
        assert_eq!(cursor.live(200, None), APPLY);
    }

    #[test]
    fn a_replay_that_gives_nothing_ends_in_a_reset_and_is_not_asked_for_again() {
        let mut cursor = Cursor::new(true);
        cursor.live(0, None);
        assert_eq!(cursor.live(5, None), ask(1));
        cursor.replay_over();
        assert_eq!(cursor.held(5, None), RESET);
        assert_eq!(cursor.live(6, None), APPLY);
        assert_eq!(cursor.live(8, None), ask(7));
    }

    #[test]
    fn a_replay_whose_start_is_lost_forgets_first() {
        let mut cursor = Cursor::new(true);
        cursor.live(0, None);
        assert_eq!(cursor.live(9, None), ask(1));
        assert_eq!(cursor.replayed(4, None), RESET);
        assert_eq!(cursor.replayed(5, None), APPLY);
    }

    #[test]
    fn a_new_life_is_seen_by_its_clock_by_zero_by_distance_and_by_its_successor() {
        let restarted = |lives: &[(u64, Option<f64>)]| {
            let mut cursor = Cursor::new(false);
            cursor.live(99, Some(50.0));
            cursor.live(100, Some(100.0));
            lives
                .iter()
                .map(|(n, at)| cursor.live(*n, *at))
                .collect::<Vec<_>>()
        };
        assert_eq!(restarted(&[(98, Some(101.0))]), [RESET]);
        assert_eq!(restarted(&[(98, Some(60.0))]), [DROP]);
        assert_eq!(restarted(&[(0, None)]), [RESET]);
        assert_eq!(restarted(&[(90, None), (92, None)]), [DROP, DROP]);
        assert_eq!(
            restarted(&[(90, None), (91, None), (92, None)]),
            [DROP, RESET, APPLY]
        );
        assert_eq!(restarted(&[(3, None)]), [RESET]);
    }

    #[test]
    fn a_new_life_with_replay_is_read_from_its_start() {
        let mut cursor = Cursor::new(true);
        cursor.live(0, Some(1.0));
        cursor.live(1, Some(2.0));
        cursor.live(2, Some(3.0));
        let verdict = cursor.live(1, Some(9.0));
        assert_eq!(
            verdict,
            Verdict {
                clear: true,
                ..ask(0)
            }
        );
        assert_eq!(
            [0, 1].map(|n| cursor.replayed(n, Some(8.0 + n as f64))),
            [APPLY; 2]
        );
        cursor.replay_over();
        assert_eq!(cursor.held(1, Some(9.0)), DROP);
    }

    #[test]
    fn a_reconnect_notices_that_the_publisher_is_another_one() {
        let mut cursor = Cursor::new(true);
        cursor.live(0, Some(1.0));
        cursor.live(1, Some(2.0));
        assert_eq!(cursor.connected(), Some(1));
        let verdict = cursor.replayed(1, Some(7.0));
        assert_eq!(
            verdict,
            Verdict {
                clear: true,
                ask_replay: Some(0),
                message: Fate::Drop
            }
        );
        assert_eq!(cursor.replayed(0, Some(6.0)), APPLY);

        let mut same = Cursor::new(true);
        same.live(0, Some(1.0));
        assert_eq!(same.connected(), Some(0));
        assert_eq!(same.replayed(0, Some(1.0)), DROP);
        assert_eq!(same.replayed(1, Some(2.0)), APPLY);
    }

    #[test]
    fn a_publisher_that_does_not_have_our_last_message_is_another_one() {
        let mut cursor = Cursor::new(true);
        cursor.live(0, Some(1.0));
        assert_eq!(cursor.connected(), Some(0));
        assert!(cursor.replay_done());
        cursor.replay_over();
        assert_eq!((cursor.last(), cursor.published()), (None, None));
        assert_eq!(cursor.counts().restarts, 1);
        assert_eq!(cursor.clone().live(3, Some(9.0)), ask(0));
        assert_eq!(cursor.live(0, Some(9.0)), APPLY);
        assert_eq!(cursor.counts().restarts, 1);

        // The same one has it, or younger ones.
        for sequence in [0, 5] {
            let mut same = Cursor::new(true);
            same.live(0, Some(1.0));
            assert_eq!(same.connected(), Some(0));
            same.replayed(sequence, Some(1.0));
            assert!(!same.replay_done());
        }
        // Nothing is known that could be another's, and a gap is no reconnection.
        let mut first = Cursor::new(true);
        assert_eq!(first.connected(), Some(0));
        assert!(!first.replay_done());
        let mut gap = Cursor::new(true);
        gap.live(0, None);
        assert_eq!(gap.live(5, None), ask(1));
        assert!(!gap.replay_done());
    }

    #[test]
    fn a_snapshot_continues_and_a_loss_on_our_side_resets() {
        let mut cursor = Cursor::new(false);
        cursor.resume(41, 7.0);
        assert!(cursor.stands_at(41, 7.0) && !cursor.stands_at(41, 7.5));
        // What overlaps is a copy, unless it is younger: then somebody else says it.
        let mut other = cursor.clone();
        assert_eq!(cursor.live(41, Some(7.0)), DROP);
        assert_eq!(other.live(40, Some(9.0)), RESET);
        assert_eq!(cursor.live(42, None), APPLY);
        assert!(cursor.lost().clear);
        assert_eq!(cursor.live(60, None), APPLY);
        assert_eq!(cursor.live(REPLAY_END, None), DROP);
        assert_eq!(cursor.last(), Some(60));
    }
}
