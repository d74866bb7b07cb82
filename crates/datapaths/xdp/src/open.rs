//! Opening: the best that kernel, driver and rights allow, with a reason for everything that is less.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use insane_datapath::DatapathError;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::xdp::SocketAddrXdpFlags;

use crate::bpf::{self, Place};
use crate::chosen::{Attached, Chosen};
use crate::config::{Attach, Queues, Vlan, XdpConfig};
use crate::filter;
use crate::gather::ETHERNET_HEADER;
use crate::interface::{self, Interface};
use crate::queue::{MOST_PARTS, Queue};
use crate::umem::{HEADROOM, Umem};
use crate::watch::Watch;

/// The technology's name.
pub(crate) const NAME: &str = "xdp";

/// The bytes of two VLAN tags, for which received frames have room.
const TAGS: usize = 8;

const TAG: usize = 4;

/// The sizes that a UMEM's frames can have, in bytes.
const FRAME_BYTES: [usize; 2] = [2048, 4096];

/// How often something busy is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// The most queues of an interface: more have never been seen.
const MOST_QUEUES: u32 = 1024;

/// Everything that an open datapath has. Dropped in this order: no frame is taken any more, then the sockets go, then the
/// memory.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Keeps the program attached; a part leaves that to what it is of.
    pub(crate) link: Option<OwnedFd>,
    pub(crate) map: OwnedFd,
    /// All sockets in one, if there are several.
    pub(crate) epoll: Option<OwnedFd>,
    pub(crate) queues: Vec<Queue>,
    /// How many of them send; those come first.
    pub(crate) senders: usize,
    pub(crate) umem: Arc<Umem>,
    /// Keeps the interface letting in what is for the station.
    pub(crate) _members: Option<OwnedFd>,
    pub(crate) interface: Arc<Interface>,
    /// If all of the interface's queues were to be taken: whether these are still all.
    pub(crate) watch: Option<Watch>,
    pub(crate) mac: [u8; 6],
    /// What of a frame is no payload, in bytes.
    pub(crate) headers: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) chosen: Chosen,
}

/// It cannot be opened here.
pub(crate) fn unavailable(reason: impl Into<String>) -> DatapathError {
    DatapathError::Unavailable { technology: NAME, reason: reason.into() }
}

fn system(call: &'static str) -> impl Fn(io::Error) -> DatapathError {
    move |source| DatapathError::System { call, source }
}

fn errno(call: &'static str) -> impl Fn(Errno) -> DatapathError {
    move |e| DatapathError::System { call, source: e.into() }
}

fn is(error: &io::Error, codes: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|code| codes.contains(&code))
}

fn missing_right(what: &str) -> DatapathError {
    unavailable(format!(
        "the kernel refused {what}: give the runtime CAP_NET_RAW (for the sockets), CAP_BPF and CAP_NET_ADMIN (for the \
         filter), or run it as root"
    ))
}

/// Waits for what another process has, in small steps and not for ever.
struct Patience {
    until: Instant,
    waited: Duration,
    busy: u32,
}

impl Patience {
    /// Waits a step; false when there has been enough of it.
    fn wait(&mut self) -> bool {
        let now = Instant::now();
        self.busy += 1;
        if now >= self.until {
            return false;
        }
        std::thread::sleep(RETRY.min(self.until - now));
        self.waited += now.elapsed();
        true
    }
}

/// Opens an interface.
pub(crate) fn open(config: &XdpConfig) -> Result<Opened, DatapathError> {
    check(config)?;
    let name = &config.interface;
    let interface = Arc::new(Interface::find(name).map_err(|e| match e {
        e if is(&e, &[Errno::NODEV]) => unavailable(format!(
            "there is no interface {name} in this network namespace: `ip link` lists those there are"
        )),
        source => system("SIOCGIFINDEX")(source),
    })?);
    let own = interface.mac().map_err(|e| match e.kind() {
        io::ErrorKind::Unsupported => unavailable(format!("{name} is no Ethernet interface")),
        _ => system("SIOCGIFHWADDR")(e),
    })?;
    let mut notes = Vec::new();
    check_tags(config, &interface, &mut notes)?;
    let sizes = sizes(config, &interface)?;
    let has = interface.channels().ok();
    let (queues, senders, count) = queues(config, has)?;
    let mut patience = Patience { until: Instant::now() + config.patience, waited: Duration::ZERO, busy: 0 };
    if let Some(others) = queues.get(senders..).filter(|others| !others.is_empty()) {
        notes.push(format!("queues {others:?} receive only: the interface sends by fewer than it receives by"));
    }

    let map = bpf::new_map(count).map_err(|e| match e {
        e if is(&e, &[Errno::PERM, Errno::ACCESS]) => missing_right("a map of sockets"),
        e if is(&e, &[Errno::NOSYS, Errno::INVAL]) => {
            unavailable(format!("this kernel has no AF_XDP (CONFIG_BPF_SYSCALL, CONFIG_XDP_SOCKETS): {e}"))
        }
        e => system("BPF_MAP_CREATE")(e),
    })?;
    let program = load(config, map.as_fd(), &mut notes)?;
    let (link, attached) = attach(config, &interface, program.as_fd(), &mut patience, &mut notes)?;

    // A frame of several buffers is not lent.
    let lend = config.lend && !sizes.several;
    let mut umem = Umem::new(config.frames * queues.len() as u32, sizes.frame_bytes, lend.then_some(config.frames))
        .map_err(system("mmap"))?;
    let mut frames = umem.frames();
    let umem = Arc::new(umem);
    let mut opened: Vec<Queue> = Vec::with_capacity(queues.len());
    for number in &queues {
        let share = frames.drain(..config.frames as usize).collect();
        let mut queue = Queue::new(&umem, *number, share, opened.is_empty()).map_err(|e| no_socket(e, &umem))?;
        if lend && let Ok(memory) = u16::try_from(opened.len()) {
            queue.lend_out_of(memory, most_lent(config.frames));
        }
        let shared = opened.first().map(Queue::socket);
        bind(&queue, config, &interface, &sizes, attached, shared, &mut patience)?;
        opened.push(queue);
    }
    for queue in &opened {
        bpf::put(map.as_fd(), queue.number, queue.socket()).map_err(system("BPF_MAP_UPDATE_ELEM"))?;
    }
    let zero_copy = opened.first().is_some_and(Queue::is_zero_copy);
    if config.zero_copy && !zero_copy && attached == Attached::Native {
        notes.push(format!("the kernel copies each frame: the driver {} has no zero-copy", interface.driver()));
    }
    let members = config.filter.station.and_then(|station| let_in(config, &interface, station, &mut notes));
    let watch = match has.filter(|_| config.queues == Queues::All).map(|has| Watch::start(&interface, has)) {
        Some(Ok(watch)) => Some(watch),
        Some(Err(e)) => {
            notes.push(format!("that the interface gets other queues is not noticed: no thread: {e}"));
            None
        }
        None => None,
    };
    let chosen = Chosen {
        interface: name.clone(),
        driver: interface.driver(),
        attached,
        zero_copy,
        several_buffers: sizes.several,
        buffer_bytes: sizes.frame_bytes,
        max_frame: sizes.max_frame,
        queues,
        buffers: config.frames,
        waited: patience.waited,
        busy: patience.busy,
        notes,
    };
    Ok(Opened {
        link: Some(link),
        map,
        epoll: if opened.len() > 1 { Some(gathered(&opened)?) } else { None },
        queues: opened,
        senders,
        umem,
        _members: members,
        interface,
        watch,
        mac: config.filter.station.unwrap_or(own),
        headers: sizes.headers,
        slot_bytes: sizes.slot_bytes,
        chosen,
    })
}

/// How many frames of a queue are lent at most: half of those that receive.
pub(crate) fn most_lent(frames: u32) -> u32 {
    frames / 4
}

fn check(config: &XdpConfig) -> Result<(), DatapathError> {
    if !config.frames.is_power_of_two() || !(64..=65_536).contains(&config.frames) {
        let frames = config.frames;
        return Err(unavailable(format!("{frames} frames a queue: it takes a power of two from 64 to 65536")));
    }
    filter::fault(&config.filter).map_or(Ok(()), |reason| Err(unavailable(reason)))
}

/// Whether a frame's VLAN can be seen where the filter looks at it.
fn check_tags(config: &XdpConfig, interface: &Interface, notes: &mut Vec<String>) -> Result<(), DatapathError> {
    let name = &config.interface;
    match config.filter.vlan {
        Vlan::Tagged(number) if interface.takes_tags_off() => Err(unavailable(format!(
            "{name} takes the tags off frames before they are seen, so none is of VLAN {number}: `ethtool -K {name} rxvlan off`"
        ))),
        // Most interfaces do so, and most of them see no VLANs at all.
        Vlan::Untagged if interface.takes_tags_off() => {
            notes.push(format!(
                "{name} takes VLAN tags off, so frames of VLANs seem to have none: if some come, `ethtool -K {name} rxvlan off`"
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The sizes that follow from the MTU.
struct Sizes {
    headers: usize,
    max_frame: usize,
    slot_bytes: usize,
    frame_bytes: usize,
    /// Whether a frame may need several buffers.
    several: bool,
}

fn sizes(config: &XdpConfig, interface: &Interface) -> Result<Sizes, DatapathError> {
    let (name, has) = (&config.interface, interface.mtu().map_err(system("SIOCGIFMTU"))?);
    let mtu = config.mtu.map_or(has, usize::from);
    if mtu > has {
        return Err(unavailable(format!(
            "frames with {mtu} bytes of payload are configured and {name} carries {has}: `ip link set dev {name} mtu {mtu}`"
        )));
    }
    let headers = ETHERNET_HEADER + if matches!(config.filter.vlan, Vlan::Tagged(_)) { TAG } else { 0 };
    let largest = FRAME_BYTES[FRAME_BYTES.len() - 1] - HEADROOM;
    // Received frames may have tags that sent ones have not, and no more buffers than sent ones.
    let slot_bytes = (mtu + ETHERNET_HEADER + TAGS).min(MOST_PARTS * largest);
    let max_frame = (mtu + headers).min(slot_bytes);
    let fits = FRAME_BYTES.into_iter().find(|bytes| slot_bytes <= bytes - HEADROOM);
    let frame_bytes = fits.unwrap_or(FRAME_BYTES[FRAME_BYTES.len() - 1]);
    Ok(Sizes { headers, max_frame, slot_bytes, frame_bytes, several: fits.is_none() })
}

/// The queues to take, how many of them send, and how many receive queues the interface has.
fn queues(config: &XdpConfig, has: Option<(u32, u32)>) -> Result<(Vec<u32>, usize, u32), DatapathError> {
    // One each, if it does not say.
    let (receive, send) = has.unwrap_or((1, 1));
    let (name, count) = (&config.interface, receive.min(MOST_QUEUES));
    let mut numbers: Vec<u32> = match &config.queues {
        Queues::All => (0..count).collect(),
        Queues::These(numbers) => numbers.clone(),
    };
    if numbers.is_empty() {
        return Err(unavailable("no queue is configured: name some, or take all"));
    }
    for (at, number) in numbers.iter().enumerate() {
        if *number >= count {
            let most = count - 1;
            return Err(unavailable(format!("{name} has no queue {number}: its queues are 0 to {most}")));
        }
        if numbers[..at].contains(number) {
            return Err(unavailable(format!("queue {number} is configured twice")));
        }
    }
    // The kernel binds a socket to a queue that receives only, and then sends nothing from it and says that all is well.
    let sends = |number: &u32| *number < send;
    let senders = numbers.iter().filter(|number| sends(number)).count();
    if senders == 0 {
        let which = if send == 1 { "queue 0 alone".into() } else { format!("queues 0 to {} alone", send - 1) };
        return Err(unavailable(format!("{name} sends by {which}: configure one of these too")));
    }
    numbers.sort_by_key(|number| !sends(number));
    Ok((numbers, senders, count))
}

fn load(config: &XdpConfig, map: BorrowedFd<'_>, notes: &mut Vec<String>) -> Result<OwnedFd, DatapathError> {
    use std::os::fd::AsRawFd;
    let program = filter::program(&config.filter, map.as_raw_fd())
        .map_err(|fault| unavailable(format!("the filter has no program ({fault:?}): give it fewer entries")))?;
    let mut log = String::new();
    // A program that can be given frames of several buffers lets the kernel keep large ones for its own traffic.
    match bpf::load(&program, true, &mut log) {
        Ok(program) => return Ok(program),
        Err(e) if is(&e, &[Errno::PERM, Errno::ACCESS]) => return Err(missing_right("to load the filter")),
        Err(e) => notes.push(format!("frames of several buffers are not filtered: {e}; it takes Linux 5.18")),
    }
    bpf::load(&program, false, &mut log).map_err(|e| {
        let said = log.lines().rev().find(|line| !line.starts_with("processed")).unwrap_or("nothing");
        unavailable(format!("the kernel's verifier refused the filter: {e}; it said: {said}"))
    })
}

fn attach(
    config: &XdpConfig,
    interface: &Interface,
    program: BorrowedFd<'_>,
    patience: &mut Patience,
    notes: &mut Vec<String>,
) -> Result<(OwnedFd, Attached), DatapathError> {
    let name = &config.interface;
    let places: &[(Place, Attached)] = match config.attach {
        Attach::NativeOrGeneric => &[(Place::Native, Attached::Native), (Place::Generic, Attached::Generic)],
        Attach::Native => &[(Place::Native, Attached::Native)],
        Attach::Generic => &[(Place::Generic, Attached::Generic)],
    };
    let mut refused = Vec::new();
    for (place, attached) in places {
        loop {
            match bpf::attach(program, interface.index, *place) {
                Ok(link) => {
                    notes.append(&mut refused);
                    return Ok((link, *attached));
                }
                Err(e) if is(&e, &[Errno::PERM, Errno::ACCESS]) => return Err(missing_right("to attach the filter")),
                Err(e) if is(&e, &[Errno::BUSY, Errno::EXIST]) => {
                    if !patience.wait() {
                        return Err(unavailable(format!(
                            "another XDP program is attached to {name} ({e}): `ip link show dev {name}` names it, \
                             `ip link set dev {name} xdp off` takes it away if no running process has it"
                        )));
                    }
                }
                Err(e) => {
                    let where_to = if *place == Place::Native { "the driver" } else { "the kernel" };
                    refused.push(format!("{where_to} {} refused the filter: {e}", interface.driver()));
                    break;
                }
            }
        }
    }
    Err(unavailable(format!(
        "{}; a smaller MTU or `attach = generic` may help, and AF_XDP takes Linux 5.9",
        refused.join("; ")
    )))
}

/// Why a socket with its memory and rings could not be made.
fn no_socket(error: Errno, umem: &Umem) -> DatapathError {
    match error {
        Errno::PERM | Errno::ACCESS => missing_right("an AF_XDP socket"),
        Errno::AFNOSUPPORT => unavailable(
            "there are no AF_XDP sockets: this kernel has none (CONFIG_XDP_SOCKETS), or the service may not have them \
             (systemd's RestrictAddressFamilies)",
        ),
        Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN => unavailable(format!(
            "{} KiB for frames cannot be pinned ({error}): raise RLIMIT_MEMLOCK, give the runtime CAP_IPC_LOCK, or \
             configure fewer frames",
            umem.len() >> 10
        )),
        error => errno("an AF_XDP socket")(error),
    }
}

fn bind(
    queue: &Queue,
    config: &XdpConfig,
    interface: &Interface,
    sizes: &Sizes,
    attached: Attached,
    shared: Option<BorrowedFd<'_>>,
    patience: &mut Patience,
) -> Result<(), DatapathError> {
    let (name, number) = (&config.interface, queue.number);
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    if sizes.several {
        flags |= SocketAddrXdpFlags::XDP_USE_SG;
    }
    // Without a word about it the kernel tries zero-copy and falls back.
    if !config.zero_copy || attached == Attached::Generic {
        flags |= SocketAddrXdpFlags::XDP_COPY;
    }
    loop {
        return match queue.bind(interface.index, flags, shared) {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) if patience.wait() => continue,
            Err(Errno::BUSY) => Err(unavailable(format!(
                "queue {number} of {name} has another socket: stop the process that has it, or configure other queues"
            ))),
            Err(Errno::PERM) => Err(missing_right("to bind a queue")),
            Err(e @ (Errno::INVAL | Errno::OPNOTSUPP)) if sizes.several => Err(unavailable(format!(
                "frames of {} bytes take several buffers, which kernel or driver refuse ({e}; it takes Linux 6.6): \
                 configure an MTU of at most {}",
                sizes.max_frame,
                FRAME_BYTES[FRAME_BYTES.len() - 1] - HEADROOM - ETHERNET_HEADER - TAGS
            ))),
            Err(e) => Err(errno("bind of an AF_XDP socket")(e)),
        };
    }
}

/// A descriptor that is readable when one of the sockets is.
pub(crate) fn gathered(queues: &[Queue]) -> Result<OwnedFd, DatapathError> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno("epoll_create"))?;
    for queue in queues {
        let data = epoll::EventData::new_u64(u64::from(queue.number));
        epoll::add(&all, queue.socket(), data, epoll::EventFlags::IN).map_err(errno("epoll_ctl"))?;
    }
    Ok(all)
}

/// Takes a socket out of what [`gathered`] made.
pub(crate) fn leave(all: &OwnedFd, queue: &Queue) {
    // One that was not in it cannot be in it any more.
    let _ = epoll::delete(all, queue.socket());
}

/// Tells the interface to let in frames for the station and for the groups in which its IPv6 addresses are asked for.
fn let_in(config: &XdpConfig, interface: &Interface, station: [u8; 6], notes: &mut Vec<String>) -> Option<OwnedFd> {
    let mut macs = vec![station];
    for address in &config.filter.addresses {
        if let std::net::IpAddr::V6(address) = address {
            let [.., a, b, c] = address.octets();
            macs.push([0x33, 0x33, 0xff, a, b, c]);
        }
    }
    let socket = match interface::packet_socket() {
        Ok(socket) => socket,
        Err(e) => {
            notes.push(format!("the interface may keep frames for the station out: AF_PACKET: {e}"));
            return None;
        }
    };
    for mac in macs {
        if let Err(e) = interface::let_in(socket.as_fd(), interface.index, mac) {
            notes.push(format!("the interface may keep frames for {mac:02x?} out: {e}"));
        }
    }
    Some(socket)
}
