//! UDP over a veth pair between two network namespaces that the test makes: conformance on a real link, and the path's MTU.

use std::net::SocketAddr;

use insane_datapath::batch::{Outcome, TxBatch};
use insane_datapath::conformance::{self, End, Rig, pattern};
use insane_datapath::{Address, Datapath};
use insane_datapath_udp::{UdpConfig, UdpDatapath};
use insane_tests_namespaces::Namespaces;

/// Two namespaces with a cable between them.
struct Cable(Namespaces);

impl Cable {
    /// `None` where namespaces cannot be made; then it has said so.
    fn new(mtu: u32) -> Option<Self> {
        let cable = Self(Namespaces::new(["a", "b"], |[a, b]| {
            vec![
                format!("link add veth0 netns {a} mtu {mtu} type veth peer name veth0 netns {b} mtu {mtu}"),
                format!("-n {a} addr add 10.98.0.1/24 dev veth0"),
                format!("-n {b} addr add 10.98.0.2/24 dev veth0"),
                format!("-n {a} addr add fd98::1/64 dev veth0 nodad"),
                format!("-n {b} addr add fd98::2/64 dev veth0 nodad"),
                format!("-n {a} link set veth0 up"),
                format!("-n {b} link set veth0 up"),
            ]
        })?);
        for end in 0..2 {
            // Or a link that goes down takes its IPv6 addresses with it.
            let setting = "/proc/sys/net/ipv6/conf/veth0/keep_addr_on_down";
            cable.0.inside(end, || std::fs::write(setting, "1").expect("a setting of the namespace"));
        }
        Some(cable)
    }

    /// A datapath that was opened inside a namespace.
    fn open(&self, end: usize, address: &str) -> UdpDatapath {
        let bind = SocketAddr::new(address.parse().expect("an address"), 0);
        self.0.inside(end, || {
            let mut udp = UdpDatapath::new(UdpConfig { interface: Some("veth0".into()), ..UdpConfig::new(bind) });
            udp.open().expect("it opens");
            udp
        })
    }

    fn rig(&self, six: bool) -> Rig {
        let [a, b] = if six { ["fd98::1", "fd98::2"] } else { ["10.98.0.1", "10.98.0.2"] };
        Rig { a: Box::new(self.open(0, a)), b: Box::new(self.open(1, b)) }
    }
}

/// The whole suite, with ends opened again in their namespaces.
fn conform(cable: &Cable, six: bool) {
    conformance::every_frame_has_an_outcome(&mut cable.rig(six));
    let mut reopen = |end: End, datapath: &mut dyn Datapath| {
        cable.0.inside(usize::from(end == End::B), || datapath.open().expect("it opens again"));
    };
    conformance::all_over_a_cable(|| cable.rig(six), &mut reopen, &mut |end, up| {
        let state = if up { "up" } else { "down" };
        cable.0.ip(end, &format!("link set veth0 {state}")).expect("it can be set");
    });
}

#[test]
fn conforms_over_veth() {
    let Some(cable) = Cable::new(1500) else { return };
    conform(&cable, false);
    conform(&cable, true);
}

#[test]
fn conforms_over_veth_with_jumbo_frames() {
    let Some(cable) = Cable::new(9000) else { return };
    conform(&cable, false);
    conform(&cable, true);
}

#[test]
fn the_paths_mtu_is_respected_and_followed() {
    let Some(cable) = Cable::new(1500) else { return };
    for (ends, headers) in [(["10.98.0.1", "10.98.0.2"], 28), (["fd98::1", "fd98::2"], 48)] {
        cable.0.ip(0, "link set veth0 mtu 1500").expect("an MTU that veth can have");
        let (mut a, b) = (cable.open(0, ends[0]), cable.open(1, ends[1]));
        let to = b.address().expect("it is open");
        assert_eq!(a.frame_limit(to), 1500 - headers);
        let mut tx = TxBatch::default();
        // One too large frame alone, and some that the kernel is given joined.
        for len in [1500 - headers + 1, 100, 2000, 2000, 2000, 100, 1500 - headers] {
            tx.frame(to, &pattern(1, len), 0);
        }
        let report = a.transmit(&mut tx);
        assert_eq!((report.sent, report.refused, report.pending), (3, 4, 0));
        let large = tx.frames().iter().filter(|frame| frame.outcome == Outcome::TooLarge).count();
        assert_eq!(large, 4, "{:?}", a.notes());
        cable.0.ip(0, "link set veth0 mtu 1400").expect("an MTU that veth can have");
        assert_eq!(a.frame_limit(to), 1400 - headers);
        let mut tx = TxBatch::default();
        tx.frame(to, &pattern(1, 1500 - headers), 0);
        tx.frame(to, &pattern(1, 1400 - headers), 0);
        a.transmit(&mut tx);
        let outcomes: Vec<_> = tx.frames().iter().map(|frame| frame.outcome).collect();
        assert_eq!(outcomes, [Outcome::TooLarge, Outcome::Sent]);
    }
}

#[test]
fn without_a_way_frames_are_unreachable() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut a = cable.open(0, "10.98.0.1");
    let mut tx = TxBatch::default();
    tx.frame(Address::Ip("192.0.2.1:9".parse().expect("an address")), b"nowhere", 0);
    // Bound to an interface the kernel takes every address to be on its link, so the interface has to be gone.
    cable.0.ip(0, "link set veth0 down").expect("it goes down");
    a.transmit(&mut tx);
    assert_eq!(tx.frames()[0].outcome, Outcome::Unreachable);
}
