//! A server of traffic control without a radio, as a process of its own: bearers 1 and 2 of RNTI 0x4601 with real pipelines.
//! `stand-in PREFIX SOCKET` serves until its standard input ends or it is killed, and says on standard output when it is ready.

use insane_traffic::PipelineSpec;
use insane_traffic_control::{BearerId, Control, ControlOptions, StandIn};
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (prefix, socket) = (arguments.next().expect("the prefix"), arguments.next().expect("the socket"));
    let session = insane::Session::builder("stand-in").socket(socket).open().expect("a session");
    let bearers = [1, 2].map(|drb| BearerId { rnti: 0x4601, drb });
    let mut stand_in = StandIn::new(&bearers, &PipelineSpec::default()).expect("a pipeline");
    let mut control = Control::open(&session, &ControlOptions::new(prefix)).expect("the channels");
    println!("ready");
    std::io::stdout().flush().expect("somebody reads");
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0_u8; 1]);
        ended.store(true, Ordering::Relaxed);
    });
    control.serve(&mut stand_in, &stop).expect("it serves");
}
