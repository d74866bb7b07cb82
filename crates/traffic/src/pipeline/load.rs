//! A whole pipeline in the place of a live one, and drafts that outlive a change.

use super::commit::{Draft, Plan};
use crate::packet::Packet;
use crate::spec::{Effect, Layout, Leftover, PipelineSpec, SpecError};

impl<P: Packet> Draft<P> {
    /// The pipeline as it was when the draft was taken, as a file would have it.
    #[must_use]
    pub fn spec(&self) -> PipelineSpec {
        self.layout.to_spec()
    }

    /// The generation that the draft is of.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Prepares everything that makes the pipeline the one of a file: what is the same stays as it is, with its state and
    /// counts. Queues keep their packets, whatever they become; those that the file does not have give theirs to queue 0 or
    /// drop them.
    ///
    /// # Errors
    /// What in the file does not fit together, or that packets would be read in another way, which a live pipeline cannot
    /// change.
    pub fn replace(&self, spec: &PipelineSpec, packets: Leftover) -> Result<Plan<P>, SpecError> {
        let new = Layout::new(spec)?;
        let old = &self.layout;
        if new.pdu != old.pdu {
            let expected = "a live pipeline goes on reading packets as it began to";
            return Err(SpecError::invalid("pdu", "another one", expected));
        }
        let mut effects = Vec::new();
        let gone = old.filters.keys().filter(|id| !new.filters.contains_key(id));
        effects.extend(gone.map(|id| Effect::RemoveFilter(*id)));
        let gone = old.queues.keys().filter(|id| !new.queues.contains_key(id));
        effects.extend(gone.map(|id| Effect::RemoveQueue(*id, packets)));
        for (id, queue) in &new.queues {
            let Some(before) = old.queues.get(id) else {
                effects.push(Effect::AddQueue(queue.clone()));
                continue;
            };
            if before.kind != queue.kind {
                effects.push(Effect::ModifyQueue(*id, queue.kind.clone()));
            }
            if before.policer != queue.policer {
                effects.push(Effect::SetPolicer(*id, queue.policer.clone()));
            }
            if before.shaper != queue.shaper {
                effects.push(Effect::SetShaper(*id, queue.shaper.clone()));
            }
        }
        let changed = new.filters.values().filter(|f| old.filters.get(&f.id) != Some(f));
        effects.extend(changed.map(|filter| Effect::PutFilter(Box::new(filter.clone()))));
        if new.scheduler != old.scheduler {
            effects.push(Effect::SetScheduler(new.scheduler.clone()));
        }
        if new.pacer != old.pacer {
            effects.push(Effect::SetPacer(new.pacer.clone()));
        }
        if new.limit != old.limit {
            effects.push(Effect::SetLimit(new.limit));
        }
        self.plan_for(new, effects)
    }

    /// The draft of the pipeline as it will be once `plan`, made by this draft, is committed: whoever makes all the changes
    /// needs to ask the pipeline for a draft once only.
    #[must_use]
    pub fn after(&self, plan: &Plan<P>) -> Self {
        Self {
            layout: plan.layout.clone(),
            generation: plan.generation + 1,
            plugins: self.plugins.clone(),
            seed: self.seed,
            couplings: plan.couplings.clone(),
        }
    }
}

impl<P> Plan<P> {
    /// How many stages the plan puts in place or takes away: what committing it costs grows with that.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Change, Pipeline, Time, spec::PRESETS};

    fn pipeline(toml: &str) -> Pipeline<Vec<u8>> {
        Pipeline::new(&PipelineSpec::from_toml(toml).unwrap(), 1).unwrap()
    }

    #[test]
    fn every_preset_takes_the_place_of_every_other_and_no_packet_is_lost() {
        for from in PRESETS {
            for to in PRESETS {
                let mut live = pipeline(from.toml);
                for n in 0..100_u8 {
                    live.enqueue(Time::from_micros(n.into()), vec![0x45, n, 0, 40, n, n], &mut ()).ok();
                }
                let held = live.packets();
                let target = PipelineSpec::from_toml(to.toml).unwrap();
                let plan = live.draft().replace(&target, Leftover::Rehome).unwrap();
                live.commit(Time::from_micros(200), plan, &mut ()).unwrap();
                assert_eq!(live.spec(), target, "{} to {}", from.name, to.name);
                assert_eq!(live.packets(), held, "{} to {}", from.name, to.name);
                live.audit().unwrap();
                let mut left = 0;
                let late = Time::from_micros(10_000_000);
                while live.dequeue(late, &mut ()).packet().is_some() {
                    left += 1;
                }
                live.audit().unwrap();
                assert!(left > 0, "{} to {}", from.name, to.name);
            }
        }
    }

    #[test]
    fn what_is_the_same_stays_with_its_counts_and_another_way_of_reading_is_refused() {
        let file = "version = 1\n[[queue]]\nid = 0\n[[queue]]\nid = 1\n[[filter]]\nid = 1\nto = { type = \"queue\", queue = 1 }";
        let mut live = pipeline(file);
        live.enqueue(Time::ZERO, vec![0; 50], &mut ()).ok();
        let spec = PipelineSpec::from_toml(&file.replace("version = 1", "version = 1\npacer = { type = \"5g-bdp\" }"));
        let plan = live.draft().replace(&spec.unwrap(), Leftover::Drop).unwrap();
        assert_eq!(plan.steps(), 1);
        live.commit(Time::ZERO, plan, &mut ()).unwrap();
        assert_eq!((live.stats().filters[0].packets, live.packets()), (1, 1));
        let mut other = live.spec();
        other.pdu.sdap_header = !other.pdu.sdap_header;
        assert!(live.draft().replace(&other, Leftover::Drop).unwrap_err().to_string().contains("goes on reading"));
    }

    #[test]
    fn a_draft_after_a_plan_is_the_draft_of_the_changed_pipeline() {
        let mut live = pipeline("version = 1\n[[queue]]\nid = 0");
        let mut draft = live.draft();
        for _ in 0..3 {
            let plan = draft.plan(&[Change::SetPacer { pacer: Default::default() }]).unwrap();
            draft = draft.after(&plan);
            live.commit(Time::ZERO, plan, &mut ()).unwrap();
        }
        assert_eq!((draft.generation(), draft.spec()), (live.generation(), live.spec()));
    }

    #[test]
    fn statistics_of_many_queues_begin_with_those_that_hold_packets() {
        let mut live = pipeline(
            "version = 1\n[[queue]]\nid = 0\ncount = 100\n[[filter]]\nid = 1\nto = { type = \"queue\", queue = 70 }",
        );
        live.enqueue(Time::ZERO, vec![0; 50], &mut ()).ok();
        let (stats, left_out) = live.stats_within(3);
        assert_eq!(stats.queues.iter().map(|q| q.id).collect::<Vec<_>>(), [0, 1, 70]);
        assert_eq!((left_out, live.stats().queues.len(), live.stats_within(100).1), (97, 100, 0));
    }
}
