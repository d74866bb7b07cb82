//! The pipeline that is not there, and what it has in common with the one that is.

use crate::packet::{Drops, Packet};
use crate::pipeline::Pipeline;
use crate::time::Time;

/// What stands between who produces packets and who sends them.
///
/// It is used generically, so that [`PassThrough`] leaves no instruction behind:
///
/// ```
/// use insane_traffic::{Discipline, Time};
///
/// fn forward<P, D: Discipline<P>>(discipline: &mut D, arrived: impl Iterator<Item = P>, out: &mut Vec<P>) {
///     for packet in arrived {
///         out.extend(discipline.push(|| Time::ZERO, packet, &mut ()));
///     }
///     while out.len() < 32 {
///         let Some(packet) = discipline.pull(|| Time::ZERO, &mut ()) else { break };
///         out.push(packet);
///     }
/// }
/// let mut out = Vec::new();
/// forward(&mut insane_traffic::PassThrough, [1, 2, 3].into_iter(), &mut out);
/// assert_eq!(out, [1, 2, 3]);
/// ```
pub trait Discipline<P> {
    /// Takes a packet. What is returned is to be sent at once; it may be a packet only where [`Self::is_pass_through`].
    /// The clock is read only if it is needed.
    fn push(&mut self, now: impl FnOnce() -> Time, packet: P, drops: &mut impl Drops<P>) -> Option<P>;

    /// The next packet to send, if one may be sent now.
    fn pull(&mut self, now: impl FnOnce() -> Time, drops: &mut impl Drops<P>) -> Option<P>;

    /// When it is worth pulling again though nothing arrives; `None` if only an arrival or a report changes anything.
    fn wake_at(&self) -> Option<Time>;

    /// Whether nothing is ever held.
    fn is_pass_through(&self) -> bool;
}

/// First in, first out without a queue: what may be sent is sent, the caller keeps what may not.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassThrough;

impl<P> Discipline<P> for PassThrough {
    #[inline(always)]
    fn push(&mut self, _now: impl FnOnce() -> Time, packet: P, _drops: &mut impl Drops<P>) -> Option<P> {
        Some(packet)
    }
    #[inline(always)]
    fn pull(&mut self, _now: impl FnOnce() -> Time, _drops: &mut impl Drops<P>) -> Option<P> {
        None
    }
    #[inline(always)]
    fn wake_at(&self) -> Option<Time> {
        None
    }
    #[inline(always)]
    fn is_pass_through(&self) -> bool {
        true
    }
}

impl<P: Packet> Discipline<P> for Pipeline<P> {
    fn push(&mut self, now: impl FnOnce() -> Time, packet: P, drops: &mut impl Drops<P>) -> Option<P> {
        // What is dropped at the entrance is counted and given to `drops`; the caller has nothing to add.
        let _ = self.enqueue(now(), packet, drops);
        None
    }
    fn pull(&mut self, now: impl FnOnce() -> Time, drops: &mut impl Drops<P>) -> Option<P> {
        self.dequeue(now(), drops).packet()
    }
    fn wake_at(&self) -> Option<Time> {
        Self::wake_at(self)
    }
    fn is_pass_through(&self) -> bool {
        false
    }
}
