//! What it costs at all that a process stands between an end and the network: shared memory to the end, a bare socket to the
//! other host, and nothing else in it.
//!
//! Ends and helpers are placed as INSANE's processes are between two hosts. A helper looks at its end's memory and at its socket
//! without blocking and lets others have the core between two looks; messages go as raw UDP does at its fastest, in runs of
//! datagrams per system call.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench_harness::{Args, Window, Words, stamp};
use bench_sockets::gso::{self, JOINED_BYTES, WINDOW_BYTES};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::line::Line;
use crate::ring::{Reader, Writer};

/// Both helpers' port, each in its host's namespace.
const PORT: u16 = 17_017;
/// A helper's socket, connected to the other helper's.
pub fn socket(args: &Args) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((args.own, PORT)).context("binding the helper's port")?;
    socket.connect((args.peer, PORT))?;
    prepare(&socket)?;
    Ok(socket)
}

fn prepare(socket: &UdpSocket) -> Result<()> {
    gso::make_room(socket)?;
    Ok(socket.set_nonblocking(true)?)
}

/// Receives a datagram, or a run of them; lets others have the core until there is one.
fn await_some(socket: &UdpSocket, buffer: &mut [u8]) -> Result<usize> {
    loop {
        if let Some(came) = receive(socket, buffer)? {
            return Ok(came);
        }
        std::thread::yield_now();
    }
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<Option<usize>> {
    match recv(socket, buffer, RecvFlags::TRUNC) {
        Ok((_, came)) => Ok(Some(came)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Round trips: the helper of the end that asks takes what that wrote to the other helper, and the answer back.
pub fn asking(line: &Line, socket: &UdpSocket, payload: usize) -> Result<()> {
    let mut message = vec![0; payload];
    for n in 1.. {
        line.await_message(n);
        stamp(&mut message, n);
        send(socket, &message, SendFlags::empty())?;
        expect(await_some(socket, &mut message)?, &message, n)?;
        line.answer_to(n);
    }
    Ok(())
}

/// Round trips: the helper of the end that answers.
pub fn answering(line: &Line, socket: &UdpSocket, payload: usize) -> Result<()> {
    let mut message = vec![0; payload];
    for n in 1.. {
        expect(await_some(socket, &mut message)?, &message, n)?;
        line.ask(n);
        send(socket, &message, SendFlags::empty())?;
    }
    Ok(())
}

fn expect(came: usize, message: &[u8], n: u64) -> Result<()> {
    if came != message.len() || bench_harness::check(message, came)? != n {
        bail!("{came} bytes that are not message {n}");
    }
    Ok(())
}

/// After how long without a word the one that was awaited is taken for lost. Longer than a busy machine keeps the other helper waiting: who
/// went on before would send more than its socket holds, and a message that is lost ends it all.
const WORD_IS_LOST: Duration = Duration::from_secs(5);

/// One way: takes what is in the ring, as much as one call sends, and never waits for more.
pub fn sending(mut ring: Reader, socket: &UdpSocket, payload: usize) -> Result<()> {
    gso::cut(socket.as_fd(), payload).context("UDP_SEGMENT")?;
    let mut run = vec![0; gso::messages_of_a_call(payload) * payload];
    let mut window = Window::new(WINDOW_BYTES, payload);
    loop {
        let filled = run.chunks_mut(payload).map_while(|message| ring.copy(message).then_some(())).count();
        if filled == 0 {
            std::thread::yield_now();
            continue;
        }
        let since = Instant::now();
        while window.is_full() {
            let mut word = [0; 8];
            match receive(socket, &mut word)? {
                Some(8) => window.progress(word),
                _ if since.elapsed() >= WORD_IS_LOST => window.forget(),
                _ => std::thread::yield_now(),
            }
        }
        send(socket, &run[..filled * payload], SendFlags::empty())?;
        window.add(filled as u64);
    }
}

/// One way: puts what comes into the ring. Messages that are missing void the repetition.
pub fn receiving(mut ring: Writer, socket: &UdpSocket, payload: usize) -> Result<()> {
    gso::join(socket.as_fd()).context("UDP_GRO")?;
    let (mut joined, mut words, mut n) = (vec![0; JOINED_BYTES], Words::new(WINDOW_BYTES, payload), 0u64);
    loop {
        let came = await_some(socket, &mut joined)?;
        for message in joined[..came].chunks(payload) {
            if message.len() != payload || message[0] != n as u8 {
                bail!("not message {n}: one or more were lost");
            }
            while !ring.pass(n, message) {
                std::thread::yield_now();
            }
            n += 1;
        }
        if let Some(word) = words.due(n) {
            // A word that is lost is made up for by the next.
            let _ = send(socket, &word, SendFlags::DONTWAIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Patience;
    use crate::memory::Shared;
    use crate::ring::{Ring, Wake};
    use std::path::Path;

    /// A helper, which goes on until the test's process ends.
    fn helper(pass_on: impl FnOnce() -> Result<()> + Send + 'static) {
        std::thread::spawn(move || {
            let Err(why) = pass_on() else { return };
            eprintln!("a helper ended: {why:#}");
            std::process::abort();
        });
    }

    /// Two sockets of this machine that know each other.
    fn cable() -> [UdpSocket; 2] {
        let pair = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port"));
        for (at, socket) in pair.iter().enumerate() {
            socket.connect(pair[1 - at].local_addr().expect("an address")).expect("a peer");
            prepare(socket).expect("a socket can");
        }
        pair
    }

    fn line(folder: &Path, host: usize, patience: Patience) -> Line {
        let shared = Shared::file(&folder.join(format!("line-{host}")), Line::bytes(64)).expect("memory");
        Line::new(shared, 64, 64, patience)
    }

    fn ring(folder: &Path, host: usize) -> Ring {
        let shared = Shared::file(&folder.join(format!("ring-{host}")), Ring::bytes(1024, 1)).expect("memory");
        Ring::new(shared, 1024, 1, Wake::Yield)
    }

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("relay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn answers_come_back() {
        let (folder, [near, far]) = (folder("line"), cable());
        let of = folder.clone();
        helper(move || asking(&line(&of, 0, Patience::Yields), &near, 64));
        let of = folder.clone();
        helper(move || answering(&line(&of, 1, Patience::Yields), &far, 64));
        let of = folder.clone();
        let end = std::thread::spawn(move || (1..=100).for_each(|n| line(&of, 1, Patience::Sleeps).answer(n)));
        let asks = line(&folder, 0, Patience::Sleeps);
        (1..=100).for_each(|n| asks.ask(n));
        end.join().expect("all were answered");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn messages_go_one_way_in_order() {
        let (folder, [near, far]) = (folder("ring"), cable());
        let of = folder.clone();
        helper(move || sending(Reader::new(ring(&of, 0), 0), &near, 1024));
        let of = folder.clone();
        helper(move || receiving(Writer::new(ring(&of, 1)), &far, 1024));
        let of = folder.clone();
        let end = std::thread::spawn(move || {
            let mut reader = Reader::new(ring(&of, 1), 0);
            (0..5000).for_each(|_| reader.take());
        });
        let stop = bench_harness::Stop::default();
        let mut writer = Writer::new(ring(&folder, 0));
        assert!((0..5000).all(|n| writer.put(n, &stop)));
        end.join().expect("none is missing");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
