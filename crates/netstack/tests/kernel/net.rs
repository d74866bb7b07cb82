//! A host whose network is the kernel's, a host whose network is the engine, and a cable between them.
//!
//! Namespace 0 is the kernel's host, namespace 1 has the other end of the cable and nothing else: frames come and go there
//! through a packet socket. Namespace 2, where a test asks for it, is a host behind the kernel's.

use std::fs::File;
use std::io::{Read, Write};
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use insane_netstack::{Arrival, Binding, Config, Emit, Engine, Interface, Mac, Prefix, Received, Report, Route};
use insane_tests_namespaces::{Namespaces, ethtool};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The engine's station and addresses; the kernel has `.1` and `::1`.
pub const MAC: Mac = Mac([2, 0, 0, 0, 0x96, 2]);
pub const V4: &str = "10.96.0.2";
pub const V6: &str = "fd96::2";
pub const KERNEL: [&str; 2] = ["10.96.0.1", "fd96::1"];
/// The host behind the kernel's, over a link with an MTU of 1400 bytes.
pub const FAR: [&str; 2] = ["10.97.0.2", "fd97::2"];

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The namespaces; removed when dropped.
pub struct Cable(Namespaces);

impl Cable {
    /// `None` where namespaces cannot be made; then it has said so.
    pub fn new(far: bool) -> Option<Self> {
        let near = |[k, e]: [&String; 2]| {
            vec![
                format!("link add veth0 netns {k} type veth peer name veth0 netns {e}"),
                format!("-n {k} addr add 10.96.0.1/24 dev veth0"),
                format!("-n {k} addr add fd96::1/64 dev veth0 nodad"),
                format!("-n {k} link set lo up"),
                format!("-n {k} link set veth0 up"),
            ]
        };
        let cable = if far {
            Self(Namespaces::new(["k", "e", "f"], |[k, e, f]| {
                let mut steps = near([k, e]);
                steps.extend([
                    format!("link add veth1 netns {k} mtu 1400 type veth peer name veth0 netns {f} mtu 1400"),
                    format!("-n {k} addr add 10.97.0.1/24 dev veth1"),
                    format!("-n {k} addr add fd97::1/64 dev veth1 nodad"),
                    format!("-n {f} addr add 10.97.0.2/24 dev veth0"),
                    format!("-n {f} addr add fd97::2/64 dev veth0 nodad"),
                    format!("-n {k} link set veth1 up"),
                    format!("-n {f} link set veth0 up"),
                    // They say to take larger segments than their link, so that the engine sends some and has to learn.
                    format!("-n {f} route add default via 10.97.0.1 advmss 1460"),
                    format!("-n {f} route add default via fd97::1 advmss 1440"),
                ]);
                steps
            })?)
        } else {
            Self(Namespaces::new(["k", "e"], |[k, e]| near([k, e]))?)
        };
        cable.inside(0, || {
            whole_checksums("veth0");
            for forwarding in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{forwarding}"), "1").expect("forwarding can be set");
            }
        });
        if far {
            cable.inside(2, || whole_checksums("veth0"));
        }
        // The engine's end belongs to nobody else: no address, and none that the kernel gives itself.
        cable.inside(1, || {
            std::fs::write("/proc/sys/net/ipv6/conf/veth0/disable_ipv6", "1").expect("it can be switched off");
        });
        cable.0.ip(1, "link set veth0 up").expect("the cable's end goes up");
        Some(cable)
    }

    /// Runs something inside a namespace. What it opens stays there.
    pub fn inside<T: Send>(&self, host: usize, what: impl FnOnce() -> T + Send) -> T {
        self.0.inside(host, what)
    }

    /// A UDP socket of the kernel's. Never blocks.
    pub fn udp(&self, host: usize, bind: &str, connect: Option<SocketAddr>) -> UdpSocket {
        let bind: SocketAddr = bind.parse().expect("an address");
        self.inside(host, move || {
            let socket = UdpSocket::bind(bind).expect("it binds");
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20).expect("root may");
            rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1 << 20).expect("it may");
            socket.set_nonblocking(true).expect("it may");
            if let Some(to) = connect {
                socket.connect(to).expect("it connects");
            }
            socket
        })
    }

    /// Starts a program in a namespace.
    pub fn start(&self, host: usize, program: &str) -> Child {
        let arguments = format!("netns exec {} {program}", self.0.name(host));
        let mut command = Command::new("ip");
        command.args(arguments.split(' ')).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("ip starts")
    }

    /// What `ip` says in a namespace.
    pub fn ip(&self, host: usize, arguments: &str) -> String {
        self.0.ip(host, arguments).expect("ip answers")
    }
}

/// Makes the kernel finish checksums before it sends, and send no joined segments: a raw frame is what a network card sends.
fn whole_checksums(interface: &str) {
    const SET_CHECKSUMS: u32 = 0x17;
    ethtool(interface, SET_CHECKSUMS, 0).expect("it can be told");
}

/// The engine's end of the cable, and all frames that went over it.
pub struct Wire {
    socket: File,
    start: Instant,
    pub seen: Vec<(u64, Vec<u8>)>,
    /// How many of the last frames are kept.
    pub keep: usize,
}

impl Wire {
    fn new() -> Self {
        // SAFETY: no pointers.
        let raw = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            libc::socket(libc::AF_PACKET, kind, i32::from((libc::ETH_P_ALL as u16).to_be()))
        };
        assert!(raw >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: just opened, owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: all zeros are a sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = rustix::net::netdevice::name_to_index(&socket, "veth0").expect("it is there") as i32;
        // SAFETY: `address` is a sockaddr_ll and lives through the call.
        let bound =
            unsafe { libc::bind(raw, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        let one: libc::c_int = 1;
        // SAFETY: `one` lives through the call.
        let set = unsafe {
            let len = size_of::<libc::c_int>() as libc::socklen_t;
            libc::setsockopt(raw, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, (&raw const one).cast(), len)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20).expect("root may");
        rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, 8 << 20).expect("root may");
        Self { socket: File::from(socket), start: Instant::now(), seen: Vec::new(), keep: 0 }
    }

    pub fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn note(&mut self, frame: &[u8]) {
        if self.seen.len() < self.keep {
            self.seen.push((self.now(), frame.to_vec()));
        }
    }

    /// Sends a frame that the engine or a test has built.
    pub fn put(&mut self, frame: &[u8]) -> bool {
        self.note(frame);
        (0..1000).any(|_| match self.socket.write(frame) {
            Ok(len) => len == frame.len(),
            Err(error)
                if error.kind() == std::io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS) =>
            {
                std::thread::sleep(Duration::from_micros(100));
                false
            }
            Err(error) => panic!("the frame cannot be sent: {error}"),
        })
    }
}

impl Emit for Wire {
    fn emit(&mut self, _device: u8, pieces: &[&[u8]]) -> bool {
        self.put(&pieces.concat())
    }
}

/// A datagram that the engine has received.
pub struct Got {
    pub binding: Binding,
    pub from: SocketAddr,
    pub payload: Vec<u8>,
}

/// The engine on its end of the cable.
pub struct Host {
    pub engine: Engine,
    pub wire: Wire,
    pub got: Vec<Got>,
    pub reports: Vec<Report>,
    frame: Vec<u8>,
}

impl Host {
    pub fn new(cable: &Cable, change: impl FnOnce(&mut Config)) -> Self {
        let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
        let interface = Interface::new(MAC, vec![prefix("10.96.0.2/24"), prefix("fd96::2/64")]);
        let mut config = Config::new(vec![interface], 0x5eed);
        for (to, gateway) in [("0.0.0.0/0", KERNEL[0]), ("::/0", KERNEL[1])] {
            let gateway = Some(gateway.parse().expect("an address"));
            config.routes.push(Route { to: prefix(to), gateway, interface: 0, metric: 0 });
        }
        change(&mut config);
        let engine = Engine::new(&config).expect("it can be");
        let wire = cable.inside(1, Wire::new);
        Self { engine, wire, got: Vec::new(), reports: Vec::new(), frame: vec![0; 65_536] }
    }

    /// Takes what has come, waiting for it up to `wait`.
    pub fn turn(&mut self, wait: Duration) {
        let now = self.wire.now();
        let due = self.engine.poll(now, &mut self.wire);
        let wait = due.map_or(wait, |due| wait.min(Duration::from_nanos(due.saturating_sub(now))));
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as i64 };
        let mut waited = [PollFd::new(&self.wire.socket, PollFlags::IN)];
        poll(&mut waited, Some(&timeout)).expect("it can be waited for");
        for _ in 0..256 {
            let Ok(len) = self.wire.socket.read(&mut self.frame) else { break };
            let frame = &self.frame[..len];
            self.wire.note(frame);
            let now = self.wire.now();
            match self.engine.receive(now, &Arrival::new(0, frame), &mut self.wire) {
                Received::Udp(datagram) => self.got.push(Got {
                    binding: datagram.binding,
                    from: datagram.from,
                    payload: datagram.payload.bytes(frame).to_vec(),
                }),
                Received::Problem(report) => self.reports.push(report),
                _ => {}
            }
        }
    }

    /// Runs until something holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}; {:?}", self.drops());
            self.turn(Duration::from_millis(2));
        }
    }

    /// Runs until a program has ended.
    pub fn while_runs(&mut self, mut child: Child) -> Output {
        self.until("a program ends", |_| child.try_wait().expect("it can be asked").is_some());
        child.wait_with_output().expect("its output")
    }

    /// The reasons for which something was dropped.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        let all = self.engine.stats().drops().filter(|(_, count)| *count > 0);
        all.map(|(reason, count)| (reason.name(), count)).collect()
    }
}
