//! In the place of the faults (`spoil`) where the feature is off: nothing happens, and costs nothing.

use super::Tx;

impl Tx {
    #[inline(always)]
    pub(super) fn has_faults(&self, _index: usize) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn refuses(&mut self, _index: usize) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn is_made_full(&mut self, _index: usize) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn is_made_full_on(&mut self, _index: usize, _at: usize) -> bool {
        false
    }

    #[inline(always)]
    pub(super) fn let_go_on(&mut self, _index: usize, _at: usize) {}
}
