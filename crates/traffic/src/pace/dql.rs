//! Dynamic queue limits (Linux `lib/dynamic_queue_limits`), with the buffer's own reports as completions.

use super::{Pace, Pacer, RlcStatus};
use crate::spec::{DqlSpec, PacerSpec};
use crate::stats::StatMap;
use crate::time::Time;

/// Finds the smallest limit of bytes in the buffer that does not let it run dry. Names as in Linux.
#[derive(Clone, Debug)]
pub struct Dql {
    spec: DqlSpec,
    num_queued: u64,
    num_completed: u64,
    last_obj_cnt: u64,
    limit: u64,
    adj_limit: u64,
    prev_num_queued: u64,
    prev_ovlimit: u64,
    prev_last_obj_cnt: u64,
    lowest_slack: u64,
    slack_start_time: Time,
    last_report: Time,
    reports: u64,
    late: u64,
}

impl Dql {
    /// A limit at its minimum.
    #[must_use]
    pub const fn new(spec: DqlSpec) -> Self {
        Self {
            spec,
            num_queued: 0,
            num_completed: 0,
            last_obj_cnt: 0,
            limit: spec.min_limit.0,
            adj_limit: spec.min_limit.0,
            prev_num_queued: 0,
            prev_ovlimit: 0,
            prev_last_obj_cnt: 0,
            lowest_slack: u64::MAX,
            slack_start_time: Time::ZERO,
            last_report: Time::ZERO,
            reports: 0,
            late: 0,
        }
    }

    /// The limit in bytes.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// `dql_completed`: `count` bytes have left the buffer.
    pub fn completed(&mut self, now: Time, count: u64) {
        let num_queued = self.num_queued;
        let completed = (self.num_completed + count).min(num_queued);
        let mut limit = self.limit;
        let mut ovlimit = (num_queued - self.num_completed).saturating_sub(limit);
        let in_progress = num_queued - completed;
        let prev_in_progress = self.prev_num_queued.saturating_sub(self.num_completed);
        let all_prev_completed = completed >= self.prev_num_queued;
        if (ovlimit > 0 && in_progress == 0) || (self.prev_ovlimit > 0 && all_prev_completed) {
            // It ran dry although more was wanted: the limit was too low by at least this much.
            limit += completed.saturating_sub(self.prev_num_queued) + self.prev_ovlimit;
            self.slack_start_time = now;
            self.lowest_slack = u64::MAX;
        } else if in_progress > 0 && prev_in_progress > 0 && !all_prev_completed {
            // It was never empty: what was left over can be spared, if that lasts.
            let slack = (limit + self.prev_ovlimit).saturating_sub(2 * (completed - self.num_completed));
            let last = if self.prev_ovlimit > 0 { self.prev_last_obj_cnt.saturating_sub(self.prev_ovlimit) } else { 0 };
            self.lowest_slack = self.lowest_slack.min(slack.max(last));
            if now > self.slack_start_time + self.spec.hold_time.0 {
                limit = limit.saturating_sub(self.lowest_slack);
                self.slack_start_time = now;
                self.lowest_slack = u64::MAX;
            }
        }
        limit = limit.clamp(self.spec.min_limit.0, self.spec.max_limit.0);
        if limit != self.limit {
            self.limit = limit;
            ovlimit = 0;
        }
        self.adj_limit = limit + completed;
        self.prev_ovlimit = ovlimit;
        self.prev_last_obj_cnt = self.last_obj_cnt;
        self.num_completed = completed;
        self.prev_num_queued = num_queued;
    }
}

impl Pacer for Dql {
    fn admit(&mut self, now: Time, _size: u32) -> Pace {
        if self.adj_limit >= self.num_queued {
            return Pace::Pass;
        }
        let deadline = self.last_report + self.spec.stale.0;
        if now < deadline {
            return Pace::Wait(deadline);
        }
        // No report for long: take the buffer for empty once, so that a lost report cannot stop everything.
        self.late += 1;
        self.last_report = now;
        let held = self.num_queued - self.num_completed;
        self.completed(now, held);
        Pace::Pass
    }

    fn sent(&mut self, _now: Time, size: u32) {
        self.num_queued += u64::from(size);
        self.last_obj_cnt = size.into();
    }

    fn report(&mut self, now: Time, status: &RlcStatus) {
        self.reports += 1;
        self.last_report = now;
        let held = self.num_queued - self.num_completed;
        let left = held.saturating_sub(status.bytes);
        if left > 0 {
            self.completed(now, left);
        }
    }

    fn modify(&mut self, spec: &PacerSpec) -> bool {
        let PacerSpec::Dql(spec) = spec else { return false };
        self.spec = *spec;
        self.limit = self.limit.clamp(spec.min_limit.0, spec.max_limit.0);
        self.adj_limit = self.limit + self.num_completed;
        true
    }

    fn stats(&self, out: &mut StatMap) {
        out.text("type", "dql");
        out.count("limit", self.limit);
        out.count("num_queued", self.num_queued);
        out.count("num_completed", self.num_completed);
        out.count("reports", self.reports);
        out.count("late_reports", self.late);
    }
}
