//! One attack: `hostile MODE SOCKET CHANNEL`. Says what it reached on standard output; exit code 0 when every door it tried
//! was shut, 1 when one was open.

use insane_shm::link::{Consumer, DeliveryBlock, Descriptor, Fate, Producer, ReturnBlock};
use insane_shm::memory::{Backing, SharedMemory, map_peer};
use insane_shm::ring::LAYOUT;
use insane_shm::socket::send;
use insane_tests_host::hostile::{Raw, connect, next, random, say, scribble};
use insane_wire::control::{self, ToRuntime, to_runtime};
use insane_wire::encode;
use insane_wire::peer::{self, ToPeer, to_peer::Body};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WHILE: Duration = Duration::from_millis(1500);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, socket, channel] = &arguments[..] else { panic!("hostile MODE SOCKET CHANNEL") };
    let path = PathBuf::from(socket);
    let result = match mode.as_str() {
        "memory" | "returns" | "scribble" | "hold" | "deaf" => as_sink(&path, channel, mode),
        "source" => as_source(&path, channel),
        "unsealed" | "many" | "half" | "small" => bad_accept(&path, channel, mode),
        "queries" => queries(&path),
        "descriptors" => descriptors(&path),
        "connections" => connections(&path),
        "denied" => match Raw::open(&path) {
            Err(text) => Ok(text),
            Ok(_) => Err("was let in".to_owned()),
        },
        other => panic!("no attack {other}"),
    };
    match result {
        Ok(text) => println!("{text}"),
        Err(text) => {
            println!("OPEN: {text}");
            std::process::exit(1);
        }
    }
}

/// Tries every way to change memory of which this process has a descriptor.
fn attack(what: &str, fd: &OwnedFd) -> Result<(), String> {
    let size = rustix::fs::fstat(fd).map_or(0, |s| usize::try_from(s.st_size).unwrap_or(0));
    let again = rustix::fs::open(
        format!("/proc/self/fd/{}", fd.as_raw_fd()),
        rustix::fs::OFlags::RDWR,
        rustix::fs::Mode::empty(),
    );
    let mut fds: Vec<BorrowedFd<'_>> = vec![fd.as_fd()];
    fds.extend(again.as_ref().ok().map(AsFd::as_fd));
    for fd in fds {
        if rustix::io::pwrite(fd, b"x", 0).is_ok() {
            return Err(format!("{what}: written to"));
        }
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        if unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::WRITE, MapFlags::SHARED, fd, 0) }.is_ok() {
            return Err(format!("{what}: mapped for writing"));
        }
        // SAFETY: as above.
        let read = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, fd, 0) };
        if let Ok(read) = read {
            // SAFETY: the range is the mapping that was just made, and nobody has a reference into it.
            let changed = unsafe { rustix::mm::mprotect(read, size, rustix::mm::MprotectFlags::WRITE) };
            if changed.is_ok() {
                return Err(format!("{what}: made writable"));
            }
            // SAFETY: as above.
            let removed = unsafe { rustix::mm::madvise(read, size, rustix::mm::Advice::LinuxRemove) };
            if removed.is_ok() {
                return Err(format!("{what}: pages taken out"));
            }
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(fd, hole, 0, 4096).is_ok() {
            return Err(format!("{what}: a hole punched"));
        }
        if rustix::fs::fallocate(fd, FallocateFlags::ZERO_RANGE, 0, 4096).is_ok() {
            return Err(format!("{what}: zeroed"));
        }
        if rustix::fs::ftruncate(fd, 0).is_ok() || rustix::fs::ftruncate(fd, size as u64 * 2).is_ok() {
            return Err(format!("{what}: another size"));
        }
        if rustix::fs::fcntl_add_seals(fd, rustix::fs::SealFlags::WRITE).is_ok() {
            return Err(format!("{what}: one more seal"));
        }
    }
    Ok(())
}

/// Joins a channel as a sink, takes part until it is in the source's view, and then misbehaves.
fn as_sink(path: &Path, channel: &str, mode: &str) -> Result<String, String> {
    let mut raw = Raw::open(path).map_err(|e| format!("no session: {e}"))?;
    raw.endpoint(channel, false)?;
    let (pairs, _) = raw.pairs(Duration::from_millis(300));
    let socket = pairs.into_iter().next().ok_or("no pair")?;
    let (mut kept, mut consumer, mut own, mut segments) = (Vec::new(), None, None, 0u32);
    let (mut state, end, mut said) = (0x9e37_79b9_7f4a_7c15u64, Instant::now() + WHILE, 0u64);
    while Instant::now() < end {
        if let Some((message, fds)) = next::<ToPeer>(socket.as_fd(), Duration::from_millis(5)) {
            match message.body {
                Some(Body::LinkOffer(offer)) => {
                    let needs = DeliveryBlock::bytes(offer.entries).map_err(|e| e.to_string())? as u64;
                    let theirs = map_peer(fds[0].as_fd(), needs, u64::MAX).map_err(|e| e.to_string())?;
                    let delivery = DeliveryBlock::open(Arc::new(theirs), offer.entries).map_err(|e| e.to_string())?;
                    let bytes = ReturnBlock::bytes(offer.entries).map_err(|e| e.to_string())?;
                    let memory = Arc::new(SharedMemory::create("r", bytes, false, true).map_err(|e| e.to_string())?);
                    let returns = ReturnBlock::create(memory.clone(), offer.entries).map_err(|e| e.to_string())?;
                    let accept = peer::LinkAccept { counter_bytes: raw.memory.len() as u64 };
                    say(&socket, message.link, Body::LinkAccept(accept), &[memory.fd(), raw.memory.fd()])?;
                    consumer = Some(Consumer::new(returns, delivery));
                    own = Some(memory);
                }
                Some(Body::SegmentAdd(add)) => {
                    if let Some(c) = consumer.as_mut() {
                        c.add_segment(add.segment as u16, add.slots, add.stride);
                    }
                    segments += 1;
                    say(&socket, message.link, Body::SegmentAck(peer::SegmentRef { segment: add.segment }), &[])?;
                }
                Some(Body::FlowOpen(flow)) => {
                    let opened = peer::FlowOpened {
                        source: flow.source,
                        sink: flow.sink,
                        cell: 0,
                        cursor: 0,
                        join: 1,
                        scattered: false,
                    };
                    say(&socket, message.link, Body::FlowOpened(opened), &[])?;
                }
                _ => {}
            }
            kept.extend(fds);
        }
        let (Some(consumer), Some(own)) = (consumer.as_mut(), own.as_ref()) else { continue };
        match mode {
            "scribble" => {
                scribble(own, &mut state, said.is_multiple_of(2));
                scribble(&raw.memory, &mut state, true);
                said += 1;
            }
            "returns" => said += lie(consumer, &mut state),
            _ => {}
        }
    }
    if mode == "returns" {
        hung_up(&socket)?;
    }
    if mode == "memory" {
        for (i, fd) in kept.iter().enumerate() {
            attack(&format!("descriptor {i}"), fd)?;
        }
    }
    if mode == "memory" && (kept.len() < 2 || segments == 0) {
        return Err(format!("only {} descriptors came, {segments} segments", kept.len()));
    }
    Ok(format!("{mode}: {} descriptors, {segments} segments, {said} rounds", kept.len()))
}

/// Returns what it has twice, and what it never had.
fn lie(consumer: &mut Consumer, state: &mut u64) -> u64 {
    while let Ok(Some(delivery)) = consumer.poll() {
        consumer.release(&delivery.descriptor, Fate::AsCounted);
        if random(state).is_multiple_of(32) {
            consumer.release(&delivery.descriptor, Fate::AsCounted);
        }
        if random(state).is_multiple_of(64) {
            let (slot, segment) = (random(state) as u32, random(state) as u16);
            consumer.release(&Descriptor { slot, segment, length: 1, ..delivery.descriptor }, Fate::Dropped);
        }
    }
    1
}

/// Joins as a source and publishes descriptors that name memory that nobody has.
fn as_source(path: &Path, channel: &str) -> Result<String, String> {
    let mut raw = Raw::open(path)?;
    let epoch = raw.endpoint(channel, true)?;
    let (pairs, sinks) = raw.pairs(Duration::from_millis(300));
    let mut links = Vec::new();
    for socket in &pairs {
        let bytes = DeliveryBlock::bytes(raw.entries).map_err(|e| e.to_string())?;
        let memory = Arc::new(SharedMemory::create("d", bytes, false, true).map_err(|e| e.to_string())?);
        let own = DeliveryBlock::create(memory.clone(), raw.entries).map_err(|e| e.to_string())?;
        let offer =
            peer::LinkOffer { stream: raw.stream().into(), entries: raw.entries, reliable: false, layout: LAYOUT };
        say(socket, 1, Body::LinkOffer(offer), &[memory.fd()])?;
        let returns = loop {
            let (message, fds) = next::<ToPeer>(socket.as_fd(), WHILE).ok_or("no accept")?;
            if matches!(message.body, Some(Body::LinkAccept(_))) {
                break map_peer(fds[0].as_fd(), 0, u64::MAX).map_err(|e| e.to_string())?;
            }
        };
        for sink in &sinks {
            for source in 0..200 {
                let (epoch, sink) = (epoch.clone(), sink.clone());
                let _ = say(
                    socket,
                    1,
                    Body::FlowOpen(peer::FlowOpen { source, epoch, sink, channel: 0, strict: false }),
                    &[],
                );
            }
        }
        let returns = ReturnBlock::open(Arc::new(returns), raw.entries).map_err(|e| e.to_string())?;
        links.push((Producer::new(own, returns), memory, socket));
    }
    let (mut state, end) = (88_172_645_463_325_252u64, Instant::now() + WHILE);
    while Instant::now() < end {
        for (producer, memory, socket) in &mut links {
            // A flood that takes no notice of credit: what the link "holds" is forgotten again and again.
            for i in 0..500 {
                if producer.credit() == 0 {
                    producer.dissolve(|_, _| {});
                }
                let source = (random(&mut state) % 200) as u32;
                producer.push(&Descriptor { sequence: i, source, joined: i as u16, ..Descriptor::default() }, b"flood");
            }
            producer.wake();
            if random(&mut state).is_multiple_of(16) {
                let closed =
                    peer::FlowClosed { source: 0, sink: sinks[0].clone(), position: u64::MAX, given_up: false };
                let _ = say(socket, 1, Body::FlowClosed(closed), &[]);
            }
            if end.saturating_duration_since(Instant::now()) < WHILE / 4 {
                scribble(memory, &mut state, true);
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(format!("source: {} links, {} sinks", links.len(), sinks.len()))
}

/// Answers an offer with memory that is not sealed, too small, too many descriptors, or half a message.
fn bad_accept(path: &Path, channel: &str, mode: &str) -> Result<String, String> {
    let mut raw = Raw::open(path)?;
    raw.endpoint(channel, false)?;
    let (pairs, _) = raw.pairs(Duration::from_millis(300));
    let socket = pairs.into_iter().next().ok_or("no pair")?;
    let (offer, _) = next::<ToPeer>(socket.as_fd(), WHILE).ok_or("no offer")?;
    let plain = rustix::fs::memfd_create("u", MemfdFlags::ALLOW_SEALING).map_err(|e| e.to_string())?;
    rustix::fs::ftruncate(&plain, 1 << 20).map_err(|e| e.to_string())?;
    let small = SharedMemory::create("s", 4096, false, false).map_err(|e| e.to_string())?;
    let accept = Body::LinkAccept(peer::LinkAccept { counter_bytes: raw.memory.len() as u64 });
    match mode {
        "unsealed" => say(&socket, offer.link, accept, &[plain.as_fd(), raw.memory.fd()])?,
        "small" => say(&socket, offer.link, accept, &[small.fd(), raw.memory.fd()])?,
        "many" => say(&socket, offer.link, accept, &[plain.as_fd(); 8])?,
        _ => {
            let whole = encode(&ToPeer { link: offer.link, body: Some(accept) });
            send(socket.as_fd(), &whole[..whole.len() - 1], &[]).map_err(|e| e.to_string())?;
        }
    }
    hung_up(&socket).map(|()| format!("{mode}: hung up"))
}

/// The peer must have hung up: messages that were sent before may still be there.
fn hung_up(socket: &OwnedFd) -> Result<(), String> {
    let end = Instant::now() + WHILE;
    while Instant::now() < end {
        match insane_shm::socket::receive(socket.as_fd(), 65_536) {
            Ok(insane_shm::socket::Received::End) | Err(_) => return Ok(()),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err("the peer still talks to this one".into())
}

/// Asks and asks, and never reads an answer.
fn queries(path: &Path) -> Result<String, String> {
    let raw = Raw::open(path)?;
    let (end, mut sent) = (Instant::now() + WHILE, 0u64);
    while Instant::now() < end {
        let body = Some(to_runtime::Body::Query(control::Query { what: "status".into() }));
        match send(raw.socket.as_fd(), &encode(&ToRuntime { request: sent + 10, body }), &[]) {
            Ok(true) => sent += 1,
            Ok(false) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => break,
        }
    }
    Ok(format!("queries: {sent} sent"))
}

/// Sends descriptors nobody asked for, more than a message may bring, half messages, and plain nonsense.
fn descriptors(path: &Path) -> Result<String, String> {
    let (mut state, end, mut sent) = (7u64, Instant::now() + WHILE, 0u64);
    let plain = rustix::fs::memfd_create("u", MemfdFlags::ALLOW_SEALING).map_err(|e| e.to_string())?;
    while Instant::now() < end {
        let Ok(socket) = connect(path) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let hello = control::Hello { protocol_max: 1, protocol_min: 1, app: "x".into(), ..control::Hello::default() };
        let whole = encode(&ToRuntime { request: 1, body: Some(to_runtime::Body::Hello(hello)) });
        let noise: Vec<u8> = (0..random(&mut state) % 300 + 1).map(|_| random(&mut state) as u8).collect();
        let _ = match sent % 4 {
            0 => send(socket.as_fd(), &whole, &[plain.as_fd(); 8]),
            1 => send(socket.as_fd(), &whole, &[plain.as_fd()]),
            2 => send(socket.as_fd(), &whole[..whole.len() / 2], &[plain.as_fd(); 3]),
            _ => send(socket.as_fd(), &noise, &[plain.as_fd(); 8]),
        };
        sent += 1;
    }
    Ok(format!("descriptors: {sent} messages"))
}

/// Connects as often as it is let, and says nothing.
fn connections(path: &Path) -> Result<String, String> {
    let end = Instant::now() + WHILE;
    let mut open = Vec::new();
    while Instant::now() < end && open.len() < 2000 {
        match connect(path) {
            Ok(socket) => open.push(socket),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    Ok(format!("connections: {} tried", open.len()))
}
