//! Local channels deliver without a pause while the runtime is killed and restarted.

use insane_tests_killmatrix::board::{Command, Word};
use insane_tests_killmatrix::cell::{World, build};
use insane_tests_killmatrix::process::{abort, until};
use insane_tests_killmatrix::table::Party;
use std::time::Duration;

/// Beyond what the machine does to everybody: what a pause may be that is none. A client looks for its runtime every 50 ms,
/// so a channel that waited for that, or for the runtime's start, would pause longer.
const SLACK: Duration = Duration::from_millis(20);

#[test]
fn local_channels_do_not_pause() {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(300));
        abort("the restarts have not finished within 300 s");
    });
    let programs = build();
    let mut world = World::start(&programs, false, None).expect("a world");
    world.settle(None).expect("it holds");
    world.resume().expect("the sources go on");
    // The first message after the pause ends no gap that counts.
    std::thread::sleep(Duration::from_millis(50));
    for process in [&mut world.source, &mut world.sink, &mut world.other] {
        process.ask(Command::Measure).expect("measuring");
    }
    let before = world.sink.board.get(Word::Count);
    for round in 0..8 {
        world.runtime.kill().expect("a kill");
        std::thread::sleep(Duration::from_millis(if round % 2 == 0 { 0 } else { 150 }));
        world.restart(Party::Runtime);
        std::thread::sleep(Duration::from_millis(250));
    }
    until("messages", Duration::from_secs(5), || world.sink.board.get(Word::Count) > before + 1000).expect("traffic");
    let at_source = world.source.board.get(Word::Stall);
    for sink in [&world.sink, &world.other] {
        let (gap, stall) = (sink.board.get(Word::Gap), sink.board.get(Word::Stall));
        let [gap, stall, at_source] = [gap, stall, at_source].map(Duration::from_nanos);
        println!("longest pause {gap:?}; the machine stalled the sink {stall:?}, the source {at_source:?}");
        assert!(gap > Duration::ZERO && gap < stall + at_source + SLACK, "a pause of {gap:?}");
    }
    world.settle(None).expect("it holds after eight restarts");
}
