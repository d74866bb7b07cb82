//! Which frames pass: what the interfaces of both ends take may be more than what lies between them carries, and what is too large may be
//! dropped without a word. So sizes are asked for (RFC 8899): a sign of life is filled up to the size and followed by a small one. If
//! the peer acknowledges the second and not the first, three times, such frames do not pass. See ADR 30.

use std::ops::RangeInclusive;
use std::time::Duration;

use insane_wire::frame::MIN_FRAME_LIMIT;

/// Frames are at most so long until larger ones are known to pass. All that carries IPv6 carries it (RFC 9000 §14 chose it for that).
const BASE: usize = 1200;

/// A size is asked for so often before it is taken not to pass (RFC 8899 §5.1.2).
const MISSES: usize = 3;

/// How long after a question without an answer the next goes, times the questions so far: whatever else loses frames may be over.
const GAP: Duration = Duration::from_millis(25);

/// How much later than one that follows it a question's answer may be, beside what the round trip allows.
const LATE: Duration = Duration::from_millis(5);

/// After an answer the size in use is not asked for so soon, whatever is lost.
const ASSURED: Duration = Duration::from_millis(500);

/// When larger frames are tried again: first, and at last (RFC 8899 §5.1.1), with twice as long between.
const RAISE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// What usually carries less than the interfaces say: Ethernet with jumbo frames and without, over IPv4 and IPv6, and VXLAN on it.
const COMMON: [usize; 4] = [8968, 1472, 1448, 1416];

/// Frames are filled up to multiples of this.
const STEP: usize = 8;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is no connection.
    Idle,
    /// It is known.
    Rest,
    /// The question is to be sent.
    Ask,
    /// It was; whether the frame after it was.
    Asked(bool),
}

/// What passes of the frames to a peer.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// What both interfaces take.
    most: usize,
    using: usize,
    /// The smallest size that is taken not to pass; above `most` if none is.
    beyond: usize,
    state: State,
    asking: usize,
    /// The numbers of the questions for this size, of which all but the last are taken to be lost; 0 for none. They may be late.
    questions: [u64; MISSES],
    misses: usize,
    /// Whether the next size above the one in use was asked for: common sizes are likely to be exact.
    edge: bool,
    /// When something is due; `MAX` for never.
    due: Duration,
    raise: Duration,
    raised: Duration,
    assured: Duration,
    /// What the user was told last: the size, if it is less than the interfaces take.
    told: Option<usize>,
    news: bool,
}

/// The size of the largest frame that is built for this limit.
fn whole(limit: usize) -> usize {
    limit.max(MIN_FRAME_LIMIT) & !(STEP - 1)
}

impl Sizes {
    pub(crate) fn new(limit: usize) -> Self {
        let most = whole(limit);
        Self {
            most,
            using: most.min(BASE),
            beyond: most + STEP,
            state: State::Idle,
            asking: 0,
            questions: [0; MISSES],
            misses: 0,
            edge: false,
            due: Duration::MAX,
            raise: RAISE.0,
            raised: Duration::ZERO,
            assured: Duration::ZERO,
            told: None,
            news: false,
        }
    }

    /// The largest frame that goes to the peer now, in bytes.
    #[inline]
    pub(crate) fn using(&self) -> usize {
        self.using
    }

    /// About how long frames are: what is in use, once that is known.
    pub(crate) fn usual(&self) -> usize {
        self.told.unwrap_or(self.most)
    }

    /// The largest that the interfaces take.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// When something is due: a question, or the end of waiting for an answer. `MAX` for never.
    pub(crate) fn due(&self) -> Duration {
        self.due
    }

    /// There is a connection with a peer, over which frames of up to `limit` bytes may go: all of it is asked for. What was found to pass
    /// before passes, until it is known not to.
    pub(crate) fn begin(&mut self, now: Duration, limit: usize) {
        self.most = whole(limit);
        self.using = self.using.min(self.most);
        (self.beyond, self.edge) = (self.most + STEP, false);
        if self.most > MIN_FRAME_LIMIT { self.ask(now, self.most) } else { self.rest(now) }
    }

    /// The interfaces take another size from now on.
    pub(crate) fn set_limit(&mut self, now: Duration, limit: usize) {
        let known = whole(limit) == self.most;
        match self.state {
            _ if known => {}
            State::Idle => {
                self.most = whole(limit);
                self.using = self.using.min(self.most);
                self.beyond = self.most + STEP;
            }
            _ => self.begin(now, limit),
        }
    }

    /// The connection is lost.
    pub(crate) fn end(&mut self) {
        (self.state, self.due) = (State::Idle, Duration::MAX);
    }

    fn ask(&mut self, at: Duration, bytes: usize) {
        (self.state, self.asking, self.due) = (State::Ask, bytes, at);
        (self.questions, self.misses) = ([0; MISSES], 0);
    }

    /// When a frame is to be sent: a question or what follows it. `MAX` for none.
    pub(crate) fn frame_due(&self) -> Duration {
        match self.state {
            State::Ask => self.due,
            State::Asked(false) => Duration::ZERO,
            _ => Duration::MAX,
        }
    }

    /// The size that is to be asked for now.
    pub(crate) fn question(&self, now: Duration) -> Option<usize> {
        (self.state == State::Ask && self.due <= now).then_some(self.asking)
    }

    /// The question was sent; a small frame is to follow it.
    pub(crate) fn asked(&mut self, counter: u64) {
        (self.state, self.due) = (State::Asked(false), Duration::MAX);
        self.questions[self.misses.min(MISSES - 1)] = counter;
    }

    /// Whether the question that was sent was not followed yet; now it is.
    pub(crate) fn take_follower(&mut self) -> bool {
        match &mut self.state {
            State::Asked(followed) => !std::mem::replace(followed, true),
            _ => false,
        }
    }

    /// Whether there may be an answer.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, State::Asked(_) | State::Ask)
    }

    /// Whether a frame of this number asked for the size.
    pub(crate) fn is_question(&self, counters: RangeInclusive<u64>) -> bool {
        self.questions.iter().any(|counter| *counter > 0 && counters.contains(counter))
    }

    /// What was asked for has arrived.
    pub(crate) fn passes(&mut self, now: Duration) {
        self.assured = now + ASSURED;
        if self.asking > self.using {
            self.raised = now;
            self.edge &= !COMMON.contains(&self.asking);
        }
        self.using = self.using.max(self.asking);
        self.search(now);
    }

    /// The frame of this number has arrived. If it was sent after the question, and the answer is not there after `patience`, the question
    /// has not.
    pub(crate) fn arrived(&mut self, now: Duration, counter: u64, patience: Duration) {
        let last = self.questions.get(self.misses).copied().unwrap_or(u64::MAX);
        if matches!(self.state, State::Asked(_)) && counter > last {
            self.due = self.due.min(now + patience + LATE);
        }
    }

    /// A frame of so many bytes is lost: perhaps because of its size.
    pub(crate) fn doubt(&mut self, now: Duration, bytes: usize) {
        let small = bytes <= MIN_FRAME_LIMIT || self.using <= MIN_FRAME_LIMIT;
        if self.state == State::Rest && !small && now >= self.assured {
            self.ask(now, self.using);
        }
    }

    /// Does what is due.
    pub(crate) fn on_time(&mut self, now: Duration) {
        if self.due > now {
            return;
        }
        match self.state {
            State::Rest => {
                (self.beyond, self.edge) = (self.most + STEP, false);
                self.raise = (self.raise * 2).min(RAISE.1);
                self.search(now);
            }
            State::Asked(_) => self.missed(now),
            State::Ask | State::Idle => {}
        }
    }

    fn missed(&mut self, now: Duration) {
        self.misses += 1;
        if self.misses < MISSES {
            (self.state, self.due) = (State::Ask, now + GAP * self.misses as u32);
            return;
        }
        self.beyond = self.asking;
        if self.asking <= self.using {
            if now.saturating_sub(self.raised) >= RAISE.1 {
                self.raise = RAISE.0;
            }
            self.using = if self.asking > BASE { BASE } else { MIN_FRAME_LIMIT };
            self.edge = false;
        }
        self.search(now);
    }

    /// Asks for the next size between what passes and what does not, if there is one.
    fn search(&mut self, now: Duration) {
        let (low, high) = (self.using, self.beyond);
        if high > self.most && low < self.most {
            return self.ask(now, self.most);
        }
        if high <= low + STEP {
            return self.rest(now);
        }
        let common = COMMON.into_iter().find(|size| (low + 1..high).contains(size));
        let next = common.unwrap_or_else(|| if self.edge { ((low + high) / 2) & !(STEP - 1) } else { low + STEP });
        self.edge |= common.is_none();
        self.ask(now, next);
    }

    fn rest(&mut self, now: Duration) {
        self.state = State::Rest;
        self.due = if self.using < self.most { now + self.raise } else { Duration::MAX };
        let is = (self.using < self.most).then_some(self.using);
        self.news |= is != self.told;
        self.told = is;
    }

    /// Whether what passes has become known, and is less than the interfaces take or is all of it again.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// How often a long test does what it does; Miri is some hundred times slower.
    const fn times(all: u32) -> u32 {
        if cfg!(miri) { all / 50 } else { all }
    }

    /// A path with a clock: what it carries changes, and what was asked is kept.
    struct Link {
        sizes: Sizes,
        now: Duration,
        counter: u64,
        carries: usize,
        asked: Vec<(Duration, usize)>,
        news: Vec<usize>,
    }

    impl Link {
        fn new(limit: usize, carries: usize) -> Self {
            let (mut sizes, now) = (Sizes::new(limit), SECOND);
            sizes.begin(now, limit);
            Self { sizes, now, counter: 1, carries, asked: Vec::new(), news: Vec::new() }
        }

        /// Time passes; whatever is due is done. The peer answers after a millisecond.
        fn pass(&mut self, time: Duration) {
            let end = self.now + time;
            while self.sizes.due() <= end {
                self.now = self.now.max(self.sizes.due());
                if let Some(bytes) = self.sizes.question(self.now) {
                    self.asked.push((self.now, bytes));
                    self.sizes.asked(self.counter);
                    assert!(self.sizes.frame_due() <= self.now && self.sizes.take_follower());
                    assert!(self.sizes.frame_due() == Duration::MAX && !self.sizes.take_follower());
                    assert!(self.sizes.waits() && self.sizes.is_question(self.counter..=self.counter));
                    self.counter += 2;
                    self.now += MS;
                    if bytes <= self.carries {
                        self.sizes.passes(self.now);
                    } else {
                        self.sizes.arrived(self.now, self.counter - 1, MS * 2);
                    }
                } else {
                    self.sizes.on_time(self.now);
                }
                if self.sizes.take_news() {
                    self.news.push(self.sizes.using());
                }
            }
            self.now = end;
        }
    }

    #[test]
    fn where_all_passes_one_question_is_asked_and_no_other() {
        for limit in [513, 1472, 8972, 65_507] {
            let mut link = Link::new(limit, usize::MAX);
            assert_eq!(link.sizes.using(), (limit & !7).min(BASE));
            link.pass(MS * 2);
            assert_eq!(link.sizes.using(), limit & !7);
            link.pass(SECOND * 10_000);
            assert!(link.asked.len() <= 1 && link.news.is_empty(), "{:?}", link.asked);
        }
    }

    #[test]
    fn what_passes_is_found_to_eight_bytes_in_a_bounded_time() {
        for limit in [512, 1000, 1472, 8972, 65_507] {
            for carries in [512, 513, 999, 1199, 1200, 1207, 1300, 1422, 1452, 1472, 1480, 3000, 8967, 8968, 65_503] {
                let mut link = Link::new(limit, carries);
                let found = (limit & !7).min(carries & !7);
                link.pass(SECOND * 3);
                if found < BASE && limit > BASE {
                    // Nothing was lost yet: it is taken to pass.
                    assert_eq!(link.sizes.using(), BASE, "{limit} {carries}");
                    link.sizes.doubt(link.now, BASE);
                    link.pass(SECOND * 3);
                }
                assert_eq!(link.sizes.using(), found, "{limit} {carries}");
                assert_eq!(link.news.last().copied().unwrap_or(limit & !7), found, "{limit} {carries}");
                assert!(link.asked.len() < 120, "{} questions", link.asked.len());
            }
        }
        // The commonest of all: jumbo frames at both ends, and none between.
        let mut link = Link::new(8972, 1472);
        link.pass(SECOND);
        assert_eq!((link.sizes.using(), link.asked.len(), &link.news[..]), (1472, 7, &[1472][..]));
    }

    #[test]
    fn losses_that_have_another_reason_change_nothing_and_are_asked_about_seldom() {
        let mut link = Link::new(8972, usize::MAX);
        link.pass(SECOND);
        for _ in 0..times(10_000) {
            link.sizes.doubt(link.now, 8968);
            link.pass(MS);
        }
        assert!(link.asked.len() <= 22 && link.news.is_empty(), "{} questions", link.asked.len());
        assert_eq!(link.sizes.using(), 8968);
        // Small ones say nothing about sizes.
        let before = link.asked.len();
        link.pass(SECOND);
        link.sizes.doubt(link.now, MIN_FRAME_LIMIT);
        link.pass(SECOND);
        assert_eq!(link.asked.len(), before);
    }

    #[test]
    fn a_path_that_changes_is_followed_down_at_once_and_up_less_and_less_often() {
        let mut link = Link::new(8972, usize::MAX);
        link.pass(SECOND);
        link.carries = 1472;
        link.sizes.doubt(link.now, 8968);
        link.pass(MS * 500);
        assert_eq!((link.sizes.using(), &link.news[..]), (1472, &[1472][..]));
        // It stays so for an hour.
        let before = link.asked.len();
        link.pass(SECOND * 3600);
        let tries: Vec<u64> =
            link.asked[before..].iter().filter(|one| one.1 == 8968).map(|one| one.0.as_secs()).collect();
        assert!((30..45).contains(&tries.len()) && link.news.len() == 1, "{tries:?}");
        let last = &tries[tries.len() - 4..];
        assert!(last[3] - last[0] >= 600 && last[0] + 1200 > last[3], "{last:?}");
        // Then all passes again.
        link.carries = usize::MAX;
        link.pass(RAISE.1 + SECOND);
        assert_eq!((link.sizes.using(), &link.news[..]), (8968, &[1472, 8968][..]));
    }

    /// It changes every few seconds, and messages are sent all the time.
    #[test]
    fn a_path_that_flaps_is_not_followed_each_time() {
        let mut link = Link::new(8972, usize::MAX);
        for n in 0..times(7200) {
            link.carries = if n % 8 < 2 { 1472 } else { usize::MAX };
            for _ in 0..10 {
                if link.carries < link.sizes.using() {
                    link.sizes.doubt(link.now, link.sizes.using());
                }
                link.pass(MS * 100);
            }
        }
        assert!((2..60).contains(&link.news.len()), "{} changes in two hours", link.news.len());
        assert!(link.asked.len() < 2000, "{} questions", link.asked.len());
    }

    /// A peer acknowledges what it likes: it gets no frame larger than the interfaces take and none smaller than the least, and is
    /// not asked more than so often.
    #[test]
    fn whatever_a_peer_answers_sizes_and_questions_are_bounded() {
        for seed in 0..u64::from(times(200)) {
            let (mut link, mut random) = (Link::new(8972, 0), seed);
            let start = link.now;
            for _ in 0..2000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                link.carries = (random >> 33) as usize % 10_000;
                link.sizes.doubt(link.now, (random >> 40) as usize % 9000);
                if random >> 60 == 0 {
                    link.sizes.set_limit(link.now, [100, 600, 1472, 8972][(random >> 50) as usize % 4]);
                }
                link.pass(MS * 10);
                assert!((MIN_FRAME_LIMIT..=link.sizes.most()).contains(&link.sizes.using()));
            }
            assert!(link.asked.iter().all(|(_, bytes)| (MIN_FRAME_LIMIT..=8968).contains(bytes)));
            let seconds = (link.now - start).as_secs() as usize;
            assert!(link.asked.len() <= seconds * 150, "{} questions in {seconds} s", link.asked.len());
        }
    }

    /// The second question goes, and the first one was late.
    #[test]
    fn an_answer_that_comes_late_is_one() {
        let mut sizes = Sizes::new(8972);
        sizes.begin(SECOND, 8972);
        for counter in [5, 7] {
            sizes.asked(counter);
            // What was sent before it says nothing.
            sizes.arrived(SECOND, counter - 1, MS);
            assert_eq!(sizes.due(), Duration::MAX);
            sizes.arrived(SECOND, counter + 1, MS);
            sizes.on_time(SECOND + MS * 6);
            assert!(sizes.waits() && sizes.due() > SECOND + MS * 6);
        }
        assert!(sizes.is_question(1..=5) && sizes.is_question(7..=7) && !sizes.is_question(0..=4));
        assert!(!sizes.is_question(6..=6) && !sizes.is_question(8..=u64::MAX));
        sizes.passes(SECOND + MS * 7);
        assert_eq!(sizes.using(), 8968);
        assert!(!sizes.waits());
    }

    #[test]
    fn a_new_connection_begins_with_what_the_last_one_had() {
        let mut link = Link::new(8972, 1472);
        link.pass(SECOND);
        link.sizes.end();
        link.pass(SECOND * 10_000);
        assert_eq!((link.sizes.due(), link.sizes.usual()), (Duration::MAX, 1472));
        link.sizes.begin(link.now, 8972);
        assert_eq!(link.sizes.using(), 1472);
        link.carries = usize::MAX;
        link.pass(MS * 2);
        assert_eq!((link.sizes.using(), &link.news[..]), (8968, &[1472, 8968][..]));
        // The other end's interface takes less than before.
        link.sizes.end();
        link.sizes.begin(link.now, 1400);
        assert_eq!((link.sizes.using(), link.sizes.most()), (1400, 1400));
    }
}
