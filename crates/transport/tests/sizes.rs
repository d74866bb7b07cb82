//! Between interfaces that take large frames lies something that drops them without a word: what passes is found, and everything arrives.

mod sim;

use std::collections::VecDeque;
use std::time::Duration;

use insane_transport::Config;
use sim::{MS, Weather, World};

const SECOND: Duration = Duration::from_secs(1);

fn world(frame_limit: usize) -> World {
    World::new(Config { frame_limit, ..Config::default() }, 7, Weather::default())
}

fn in_use(world: &World) -> [u64; 2] {
    world.hosts.each_ref().map(|host| host.path.stats().frame_bytes)
}

/// Time passes for everybody.
fn pass(world: &mut World, time: Duration) {
    let end = world.now + time;
    while world.now < end {
        world.step();
    }
}

fn flow(world: &mut World, epoch: u128, reliable: bool, todo: VecDeque<u32>) -> usize {
    let host = &mut world.hosts[0];
    host.source(epoch, 7, reliable, todo);
    let n = host.sources.len() - 1;
    host.reopen(n);
    world.hosts[1].sink(epoch, reliable);
    n
}

#[test]
fn on_an_ordinary_link_frames_are_as_large_as_they_can_be_before_the_first_message_goes() {
    for limit in [512, 1472, 8972, 65_507] {
        let mut world = world(limit);
        let start = world.now;
        flow(&mut world, 1, true, vec![60_000; 10].into());
        world.run(start + SECOND, |world| !world.hosts[1].sinks[&1].seen.is_empty());
        assert_eq!(in_use(&world), [limit as u64 & !7; 2], "{limit}");
        // Nothing more is said about it, and nothing was lost.
        world.run(start + SECOND, |world| world.hosts[0].idle());
        let most = 10 * (60_000 / ((limit as u64 & !7) - 72) + 2) + 40;
        let sent = world.hosts[0].path.stats().sent_frames;
        assert!(sent <= most, "{sent} frames of {limit}");
        pass(&mut world, SECOND);
        let before = world.sent;
        pass(&mut world, SECOND * 100);
        // Signs of life each way and what acknowledges them.
        assert!(world.sent - before <= 100 * 4 * 2 * 2, "{} frames", world.sent - before);
        assert!(world.hosts.iter().all(|host| host.path.stats().lost_frames == 0), "{limit}");
    }
}

#[test]
fn where_large_frames_vanish_everything_arrives_in_smaller_ones() {
    for carries in [520, 700, 1199, 1200, 1422, 1472, 4000, 8967] {
        let mut world = world(8972);
        world.carries = carries;
        let start = world.now;
        let todo: VecDeque<u32> = (0..100).map(|n| if n % 3 == 0 { 60_000 } else { 100 * n }).collect();
        flow(&mut world, 1, true, todo);
        world.run(start + SECOND * 10, |world| world.hosts[0].idle() && world.hosts[1].idle());
        assert_eq!(world.hosts[1].sinks[&1].seen, (1..=100).collect::<Vec<u64>>(), "{carries}");
        pass(&mut world, SECOND * 3);
        // The other side has sent nothing that is large: what it says is small, and it is not looked for what passes below that.
        let found = carries as u64 & !7;
        assert_eq!(in_use(&world), [found, found.max(1200)], "{carries}");
        assert!(world.hosts.iter().all(|host| host.path.stats().connections == 1 && host.lost == 0));
    }
}

#[test]
fn a_path_that_carries_less_in_mid_stream_loses_nothing_of_a_reliable_stream() {
    for (dedicated, carries) in [(false, 1472), (true, 1472), (true, 600), (false, 8960)] {
        let config = Config { frame_limit: 8972, dedicated, ..Config::default() };
        let mut world = World::new(config, 7, Weather::default());
        let start = world.now;
        let sizes = |n: u32| [60_000, 40, 5000, 8000, 1300, 300, 200_000][n as usize % 7];
        flow(&mut world, 1, true, (0..1000).map(sizes).collect());
        flow(&mut world, 2, false, (0..2000).map(sizes).collect());
        world.run(start + SECOND * 10, |world| world.hosts[1].sinks[&1].seen.len() > 300);
        assert_eq!(in_use(&world), [8968; 2]);
        world.carries = carries;
        let (fell, had) = (world.now, world.hosts[1].sinks[&2].seen.len());
        world.run(fell + SECOND * 2, |world| in_use(world)[0] == carries as u64);
        // What is large goes on arriving.
        let last = world.hosts[0].sources[1].emitted;
        world.run(start + SECOND * 100, |world| world.hosts.iter().all(sim::Host::idle));
        assert_eq!(world.hosts[1].sinks[&1].seen, (1..=1000).collect::<Vec<u64>>(), "{dedicated} {carries}");
        let late = world.hosts[1].sinks[&2].seen.iter().filter(|sequence| **sequence > last).count();
        assert!(world.hosts[1].sinks[&2].seen.len() > had + late / 2, "{late} of {last}");
        assert!(world.hosts.iter().all(|host| host.lost == 0), "the connection was lost");
        // And up again, in time.
        world.carries = usize::MAX;
        pass(&mut world, SECOND * 25);
        assert_eq!(in_use(&world)[0], 8968);
    }
}

/// What else may happen to frames is not taken for their size for long.
#[test]
fn frames_stay_large_where_some_of_any_size_are_lost() {
    let mut world = World::new(
        Config { frame_limit: 8972, ..Config::default() },
        7,
        Weather { lose: 5, delay: 10, ..Weather::default() },
    );
    let start = world.now;
    flow(&mut world, 1, true, vec![60_000; 8000].into());
    world.run(start + SECOND * 2, |world| in_use(world)[0] == 8968);
    let (mut large, mut steps) = (0u32, 0u32);
    while !world.hosts[0].idle() && world.now < start + SECOND * 600 {
        pass(&mut world, MS * 10);
        steps += 1;
        large += u32::from(in_use(&world)[0] >= 8900);
    }
    assert!(world.hosts[0].idle() && large > steps / 10 * 9, "{large} of {steps}");
}
