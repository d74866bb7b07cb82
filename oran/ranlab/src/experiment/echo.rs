//! A pair of programs that measure round trips over UDP: a datagram at every period, and what comes back.
//!
//! A datagram is 64 bytes: `RLEC`, its number and the client's clock in nanoseconds, 64 bits each, big-endian, and zeros. It
//! comes back as it was sent, with the mark (type of service) that its server has been given.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::numbers::Point;

const DATAGRAM: usize = 64;
/// How long answers are waited for after the last datagram.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a client saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Echoed {
    /// Datagrams sent.
    pub sent: u64,
    /// When an answer came, in seconds since the client began, and its round trip in milliseconds.
    pub trips: Vec<Point>,
}

impl Echoed {
    /// The part of the datagrams that did not come back, in percent; not a number if none was sent.
    #[must_use]
    pub fn lost(&self) -> f64 {
        100.0 * (self.sent as f64 - self.trips.len() as f64) / self.sent as f64
    }
}

fn socket(address: &str, port: u16, tos: u8) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, port))?;
    rustix::net::sockopt::set_ip_tos(&socket, tos)?;
    Ok(socket)
}

fn datagram(number: u64, clock: u64) -> [u8; DATAGRAM] {
    let mut bytes = [0; DATAGRAM];
    bytes[..4].copy_from_slice(b"RLEC");
    bytes[4..12].copy_from_slice(&number.to_be_bytes());
    bytes[12..20].copy_from_slice(&clock.to_be_bytes());
    bytes
}

/// The number and the clock of a datagram of ours.
fn read(bytes: &[u8]) -> Option<(u64, u64)> {
    let rest = bytes.strip_prefix(b"RLEC").filter(|_| bytes.len() == DATAGRAM)?;
    let number = |at: usize| Some(u64::from_be_bytes(rest.get(at..at + 8)?.try_into().ok()?));
    Some((number(0)?, number(8)?))
}

/// Sends back what comes until `seconds` are over, with a type of service. Blocks.
///
/// # Errors
/// The port is taken, or the socket fails.
pub fn serve(port: u16, tos: u8, seconds: Duration) -> io::Result<()> {
    let socket = socket("0.0.0.0", port, tos)?;
    let end = Instant::now() + seconds;
    let mut buffer = [0; 2048];
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        match socket.recv_from(&mut buffer) {
            // One that cannot be sent is lost, and the client's to count.
            Ok((length, from)) if read(&buffer[..length]).is_some() => drop(socket.send_to(&buffer[..length], from)),
            Ok(_) => {}
            Err(e)
                if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionRefused) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sends a datagram every `every` for so long, with a type of service; blocks for that and up to three seconds more, until
/// all have come back.
///
/// # Errors
/// There is no way to the server, or the socket fails.
pub fn ask(server: &str, port: u16, tos: u8, every: Duration, seconds: Duration) -> io::Result<Echoed> {
    let socket = socket("0.0.0.0", 0, tos)?;
    socket.connect((server, port))?;
    let began = Instant::now();
    let nanos = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (mut echoed, mut buffer) = (Echoed::default(), [0; 2048]);
    let mut answered = Vec::new();
    let end = began + seconds;
    loop {
        let now = Instant::now();
        let next = began + every * u32::try_from(echoed.sent).unwrap_or(u32::MAX);
        if now < end && now >= next {
            // The server may not be there yet, and counts as loss.
            let _ = socket.send(&datagram(echoed.sent, nanos()));
            echoed.sent += 1;
            answered.push(false);
            continue;
        }
        let all = echoed.trips.len() as u64 == echoed.sent;
        if now >= end + PATIENCE || (now >= end && all) {
            return Ok(echoed);
        }
        let until = if next < end { next } else { end + PATIENCE };
        let left = until.saturating_duration_since(now).max(Duration::from_micros(50));
        socket.set_read_timeout(Some(left))?;
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        let Some((number, clock)) = read(&buffer[..length]) else { continue };
        // Each counts once, however often the network brings it.
        let first =
            usize::try_from(number).ok().and_then(|n| answered.get_mut(n)).map(|seen| !std::mem::replace(seen, true));
        if first == Some(true) {
            let now = nanos();
            echoed.trips.push([now as f64 / 1e9, now.saturating_sub(clock) as f64 / 1e6]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_read_as_they_were_written_and_others_do_not() {
        assert_eq!(read(&datagram(7, 1 << 40)), Some((7, 1 << 40)));
        assert_eq!(read(&datagram(7, 8)[..DATAGRAM - 1]), None);
        assert_eq!(read(&[0; DATAGRAM]), None);
    }

    #[test]
    fn datagrams_come_back_over_loopback_and_each_is_counted_once() {
        let port = UdpSocket::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let server = std::thread::spawn(move || serve(port, 0xb8, Duration::from_millis(1_000)));
        std::thread::sleep(Duration::from_millis(200));
        let echoed = ask("127.0.0.1", port, 0x20, Duration::from_millis(10), Duration::from_millis(300)).unwrap();
        server.join().unwrap().unwrap();
        assert!((20..=31).contains(&echoed.sent), "{echoed:?}");
        assert!(echoed.trips.len() as u64 <= echoed.sent && echoed.lost() < 20.0, "{echoed:?}");
    }

    #[test]
    fn what_does_not_come_back_is_lost() {
        let echoed = Echoed { sent: 4, trips: vec![[0.0, 1.0]] };
        assert_eq!(echoed.lost(), 75.0);
        assert!(Echoed::default().lost().is_nan());
    }
}
