//! The conformance suite on two of DPDK's devices with a cable between them, for machines that have some:
//!
//! ```text
//! cards /usr/local/lib/insane/libinsane_dpdk.so 0000:01:00.0 0000:01:00.1 [EAL ARGUMENTS]
//! ```
//!
//! Cards must be bound to vfio-pci. Their interrupts are relied on: where a sleeper is not woken, `--in-memory
//! --single-file-segments --vfio-intr=msi` may help; else they are to be polled. It ends with 0 when they conform, and panics with what they do not do.

use std::time::{Duration, Instant};

use insane_datapath::batch::{Outcome, RxBatch, TxBatch};
use insane_datapath::conformance::{self as suite, Rig};
use insane_datapath::memory::Slot;
use insane_datapath::{Address, Datapath};
use insane_datapath_dpdk::{Dpdk, DpdkConfig};

/// Sends frames that are for nobody until one has gone: links take seconds to come up.
fn wait_for_link(datapath: &mut dyn Datapath) {
    let (start, bytes) = (Instant::now(), datapath.capabilities().slot_bytes);
    let Some(Address::Ethernet(own)) = datapath.address() else { panic!("it is open") };
    let frame = [&[2; 6][..], &own, &[0x88, 0xb5, 0, 0]].concat();
    loop {
        let mut tx = TxBatch::default();
        tx.frame(Address::Ethernet([2; 6]), &frame, 0);
        datapath.transmit(&mut tx);
        let mut rx = RxBatch { free: vec![Slot::owned(0, bytes)], ..RxBatch::default() };
        datapath.receive(&mut rx, None);
        if tx.frames()[0].outcome == Outcome::Sent {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no link: {:?}", datapath.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [object, a, b, eal @ ..] = arguments.as_slice() else {
        eprintln!("usage: cards OBJECT DEVICE DEVICE [EAL ARGUMENTS]");
        std::process::exit(2);
    };
    let dpdk = Dpdk::load(object).unwrap_or_else(|e| panic!("{e}"));
    let open = |device: &String, end: u8| {
        let (station, eal) = (Some([2, 0x94, 0, 0, 0, end]), (!eal.is_empty()).then(|| eal.join(" ")));
        let config = DpdkConfig { station, eal, interrupts: true, ..DpdkConfig::new(device) };
        let mut port = dpdk.port(&config).unwrap_or_else(|e| panic!("{e}"));
        port.open().unwrap_or_else(|e| panic!("{e}"));
        println!("{}", port.describe());
        Box::new(port)
    };
    let mut rig = || {
        let (mut a, mut b) = (open(a, 1), open(b, 2));
        wait_for_link(&mut *a);
        wait_for_link(&mut *b);
        Rig { a, b }
    };
    suite::all_but_outcomes(&mut rig, &mut |_, datapath| {
        datapath.open().expect("it opens again");
        wait_for_link(datapath);
    });
    println!("{a} and {b} conform");
}
