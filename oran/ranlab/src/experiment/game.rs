//! A game-like pair of programs: inputs up and states down, each at every tick, over UDP. Ticks that come late are counted.
//!
//! An input is 60 bytes: `RLGI`, its number and the client's clock. A state is 100 bytes: `RLGS`, the tick's number, the
//! clock of the newest input, and how long the server held it. All numbers are 64 bits, big-endian.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

const INPUT: usize = 60;
const STATE: usize = 100;
/// Players that a server knows at once.
const MAX_PLAYERS: usize = 16;

/// What a player saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Played {
    /// Length of a tick in milliseconds.
    pub tick_ms: f64,
    /// States that arrived: the tick, when (seconds since the client began), and the round trip of the newest input in
    /// milliseconds, the server's hold taken off.
    pub states: Vec<(u64, f64, f64)>,
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

struct Player {
    address: SocketAddr,
    clock: u64,
    heard: Instant,
}

/// Serves players until `seconds` are over: a state to each at every tick. A player silent for 10 s is forgotten; more
/// than sixteen at once are not served.
///
/// # Errors
/// The port is taken.
pub fn serve(port: u16, tick: Duration, seconds: Duration) -> io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port))?;
    let began = Instant::now();
    let mut players: Vec<Player> = Vec::new();
    let (mut number_of_tick, mut buffer) = (0_u64, [0; 2048]);
    while began.elapsed() < seconds {
        number_of_tick += 1;
        let due = began + tick * u32::try_from(number_of_tick).unwrap_or(u32::MAX);
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            match socket.recv_from(&mut buffer) {
                Ok((length, address)) if buffer[..length].starts_with(b"RLGI") => {
                    let Some(clock) = number(&buffer[..length], 12) else { continue };
                    let heard = Instant::now();
                    if let Some(player) = players.iter_mut().find(|p| p.address == address) {
                        (player.clock, player.heard) = (clock, heard);
                    } else if players.len() < MAX_PLAYERS {
                        players.push(Player { address, clock, heard });
                    }
                }
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // A player that has gone answers with an ICMP error.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
                Err(e) => return Err(e),
            }
        }
        players.retain(|p| p.heard.elapsed() < Duration::from_secs(10));
        for player in &players {
            let hold = u64::try_from(player.heard.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let mut state = [0; STATE];
            state[..4].copy_from_slice(b"RLGS");
            for (at, value) in [(4, number_of_tick), (12, player.clock), (20, hold)] {
                state[at..at + 8].copy_from_slice(&value.to_be_bytes());
            }
            // One state lost is the player's to count.
            let _ = socket.send_to(&state, player.address);
        }
    }
    Ok(())
}

/// Plays for so long: an input at every tick; every state that arrives is noted.
///
/// # Errors
/// There is no way to the server.
pub fn play(server: &str, port: u16, tick: Duration, seconds: Duration) -> io::Result<Played> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((server, port))?;
    let began = Instant::now();
    let nanos = || u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut played = Played { tick_ms: tick.as_secs_f64() * 1e3, states: Vec::new() };
    let (mut inputs, mut buffer) = (0_u64, [0; 2048]);
    while began.elapsed() < seconds {
        let mut input = [0; INPUT];
        input[..4].copy_from_slice(b"RLGI");
        input[4..12].copy_from_slice(&inputs.to_be_bytes());
        input[12..20].copy_from_slice(&nanos().to_be_bytes());
        inputs += 1;
        // The server may not be there yet.
        let _ = socket.send(&input);
        let due = began + tick * u32::try_from(inputs).unwrap_or(u32::MAX);
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            let Ok(length) = socket.recv(&mut buffer) else { continue };
            let state = &buffer[..length];
            if let (b"RLGS", Some(tick), Some(clock), Some(hold)) =
                (&state[..4.min(length)], number(state, 4), number(state, 12), number(state, 20))
            {
                let now = nanos();
                let trip = now.saturating_sub(clock).saturating_sub(hold);
                played.states.push((tick, now as f64 / 1e9, trip as f64 / 1e6));
            }
        }
    }
    Ok(played)
}

impl Played {
    /// Which ticks from `from` to `to` (seconds of the client's clock) were late: those that arrived more than `grace` ms
    /// after their instant, or not at all. The instants follow from the earliest arrivals before `calm`. Returns how many
    /// were late and how many there were.
    #[must_use]
    pub fn late(&self, calm: f64, from: f64, to: f64, grace: f64) -> (u64, u64) {
        let tick = self.tick_ms / 1e3;
        let offset = |state: &&(u64, f64, f64)| state.1 - state.0 as f64 * tick;
        let early = self.states.iter().filter(|s| s.1 < calm);
        let Some(base) = early.map(|s| offset(&s)).min_by(f64::total_cmp) else { return (0, 0) };
        let ticks = |instant: f64| ((instant - base) / tick).ceil().max(0.0) as u64;
        let (first, end) = (ticks(from), ticks(to));
        let in_time: std::collections::HashSet<u64> = self
            .states
            .iter()
            .filter(|s| (first..end).contains(&s.0) && offset(s) - base <= grace / 1e3)
            .map(|s| s.0)
            .collect();
        let all = end.saturating_sub(first);
        (all - in_time.len() as u64, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn players_get_states_and_round_trips_over_loopback() {
        let tick = Duration::from_millis(20);
        let port = {
            let probe = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
            probe.local_addr().unwrap().port()
        };
        let server = std::thread::spawn(move || serve(port, tick, Duration::from_millis(1500)));
        std::thread::sleep(Duration::from_millis(100));
        let played = play("127.0.0.1", port, tick, Duration::from_millis(1000)).unwrap();
        server.join().unwrap().unwrap();
        assert!(played.states.len() > 10, "{}", played.states.len());
        assert!(played.states.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn late_and_missing_ticks_are_counted() {
        let mut states: Vec<(u64, f64, f64)> = (0..100).map(|n| (n, 0.5 + n as f64 * 0.02, 10.0)).collect();
        states[60].1 += 0.1;
        states[61].1 += 0.001;
        states.remove(70);
        let played = Played { tick_ms: 20.0, states };
        assert_eq!(played.late(1.0, 1.0, 2.0, 20.0), (2, 50));
        assert_eq!(played.late(0.1, 1.0, 2.0, 20.0), (0, 0), "nothing to go by");
    }
}
