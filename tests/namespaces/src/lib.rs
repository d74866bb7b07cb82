//! Network namespaces that a test or an example makes and that go with it, also when it is killed: hosts on one machine.
//!
//! They take root and iproute2. Without them [`Namespaces::new`] says so in a line that begins with `SKIPPED`, which the test
//! runner counts.

mod vlan;

pub use vlan::Vlan;

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Namespaces of this process so far: their names are its own.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Runs a program with arguments that hold no spaces, and waits for it. Returns what it printed.
///
/// # Errors
/// That it could not be started, or what it complained of.
pub fn run(program: &str, arguments: &str) -> Result<String, String> {
    let output = Command::new(program).args(arguments.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// [`run`] of `ip`.
///
/// # Errors
/// As [`run`].
pub fn ip(arguments: &str) -> Result<String, String> {
    run("ip", arguments)
}

/// Moves this thread, and it alone, into a namespace. What it opens from now on is there.
///
/// # Panics
/// When there is no such namespace, or it may not be entered.
pub fn enter(name: &str) {
    let file = File::open(format!("/run/netns/{name}")).expect("the namespace");
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter it");
}

/// Asks an interface of this thread's network namespace something by one of ethtool's commands that take and give a number, such
/// as 0x17, which sets whether checksums are left to the interface. The number.
///
/// # Errors
/// That of the system.
pub fn ethtool(interface: &str, command: u32, data: u32) -> io::Result<u32> {
    let [_, data] = ask(interface, [command, data])?;
    Ok(data)
}

/// Gives an interface of this thread's network namespace so many queues to receive and to send by, as `ethtool -L DEVICE rx N tx N` does.
///
/// # Errors
/// That of the system.
pub fn set_queues(interface: &str, receive: u32, send: u32) -> io::Result<()> {
    const GET_CHANNELS: u32 = 0x3c;
    const SET_CHANNELS: u32 = 0x3d;
    // The command, the most of each kind, and how many there are to receive, to send, for other things and for both.
    let mut channels = ask(interface, [GET_CHANNELS, 0, 0, 0, 0, 0, 0, 0, 0])?;
    (channels[0], channels[5], channels[6]) = (SET_CHANNELS, receive, send);
    ask(interface, channels).map(drop)
}

/// Asks an interface by one of ethtool's commands, which begins the words that it takes and gives.
fn ask<const WORDS: usize>(interface: &str, mut words: [u32; WORDS]) -> io::Result<[u32; WORDS]> {
    // SAFETY: all zeros are an ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut words).cast();
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: SIOCETHTOOL reads an ifreq, and the words that it points to, as many as the command has, it reads or writes; both live
    // through the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if done == 0 { Ok(words) } else { Err(io::Error::last_os_error()) }
}

/// Has an interface of this thread's network namespace leave VLAN tags in the frames, both ways, as `ethtool -K DEVICE rxvlan off txvlan
/// off` does. Otherwise a veth gives them beside the frames.
///
/// # Errors
/// That of the system.
pub fn leave_tags(interface: &str) -> io::Result<()> {
    const GET_FLAGS: u32 = 0x25;
    const SET_FLAGS: u32 = 0x26;
    const TAGS: u32 = 1 << 7 | 1 << 8;
    let flags = ethtool(interface, GET_FLAGS, 0)?;
    ethtool(interface, SET_FLAGS, flags & !TAGS).map(drop)
}

/// Whether AF_XDP sockets can be made here. Where they cannot it has said so.
#[must_use]
pub fn has_af_xdp() -> bool {
    match rustix::net::socket(rustix::net::AddressFamily::XDP, rustix::net::SocketType::RAW, None) {
        Ok(_) => true,
        Err(error) => {
            println!("SKIPPED: AF_XDP sockets cannot be made here: {error}");
            false
        }
    }
}

/// Some namespaces; removed when dropped or when the process ends in whatever way, with what is in them.
#[derive(Debug)]
pub struct Namespaces {
    names: Vec<String>,
    /// Removes them when its input ends.
    remover: Child,
}

impl Namespaces {
    /// Makes one namespace for each of `kinds`, a few letters that its name has in it, and runs `ip` with each line that `steps`
    /// makes of their names. `None` where that cannot be done; then it has said so.
    pub fn new<const N: usize>(kinds: [&str; N], steps: impl FnOnce(&[String; N]) -> Vec<String>) -> Option<Self> {
        match Self::made(kinds, steps) {
            Ok(this) => Some(this),
            Err(why) => {
                println!("SKIPPED: {why}");
                None
            }
        }
    }

    /// As [`Self::new`], or why it cannot be done.
    fn made<const N: usize>(kinds: [&str; N], steps: impl FnOnce(&[String; N]) -> Vec<String>) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces, which only root can make".to_owned());
        }
        let id = format!("{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let names = kinds.map(|kind| format!("ins{kind}{id}"));
        let steps = steps(&names);
        let remover = remover(&names).map_err(|error| format!("sh: {error}"))?;
        let this = Self { names: names.to_vec(), remover };
        let add = this.names.iter().map(|name| format!("netns add {name}"));
        for step in add.chain(steps) {
            ip(&step).map_err(|error| format!("network namespaces cannot be made here: {error}"))?;
        }
        Ok(this)
    }

    /// A namespace's name, for `ip -n` and `ip netns exec`.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn name(&self, at: usize) -> &str {
        &self.names[at]
    }

    /// Does something inside a namespace, in a thread of its own, and waits for it. A socket stays in the namespace in which it
    /// was made.
    ///
    /// # Panics
    /// As `act`, or when the namespace cannot be entered.
    pub fn inside<R: Send>(&self, at: usize, act: impl FnOnce() -> R + Send) -> R {
        let name = self.name(at);
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                enter(name);
                act()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` in a namespace. Returns what it printed.
    ///
    /// # Errors
    /// As [`run`].
    pub fn ip(&self, at: usize, arguments: &str) -> Result<String, String> {
        ip(&format!("-n {} {arguments}", self.name(at)))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // Waiting closes its input first.
        let _ = self.remover.wait();
    }
}

/// A process that waits until this one closes its end of a pipe or is no more, and then removes namespaces. What ends this
/// process by a signal to its group does not end that one.
fn remover(names: &[String]) -> io::Result<Child> {
    // One that was not made before something failed is not there.
    const SCRIPT: &str = r#"read -r end; for name do ip netns del "$name"; done"#;
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "sh"]).args(names).process_group(0);
    // It outlives what the test closes, and must not keep it: libraries make descriptors that are inherited.
    let inherits_nothing = || {
        // SAFETY: a call without memory, which may be made between fork and exec.
        match unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes one system call and takes no lock and no memory.
    unsafe { command.pre_exec(inherits_nothing) };
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn namespaces_go_with_their_owner_and_after_a_failure() {
        let Some(two) = Namespaces::new(["ta", "tb"], |[a, b]| {
            vec![format!("link add veth0 netns {a} type veth peer name veth0 netns {b}")]
        }) else {
            return;
        };
        let names = [two.name(0).to_owned(), two.name(1).to_owned()];
        assert!(two.ip(1, "link show veth0").unwrap().contains("veth0"));
        let seen = two.inside(0, || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        assert!(
            seen.contains("veth0") && !std::fs::read_to_string("/proc/thread-self/net/dev").unwrap().contains("veth0")
        );
        drop(two);
        // The second step cannot be done: what the first made is gone too.
        let mut half = String::new();
        let failed = Namespaces::made(["tc"], |[c]| {
            half.clone_from(c);
            vec![format!("-n {c} link set lo up"), format!("-n {c} link set nothing up")]
        });
        assert!(failed.unwrap_err().contains("nothing"));
        let left = ip("netns list").unwrap();
        assert!(names.iter().chain([&half]).all(|name| !left.contains(name.as_str())), "{left}");
    }

    #[test]
    fn namespaces_go_with_an_owner_that_is_killed() {
        const NAME: &str = "tests::namespaces_go_with_an_owner_that_is_killed";
        const CHILD: &str = "INSANE_TEST_KILLED_OWNER";
        if std::env::var_os(CHILD).is_some() {
            let _one = Namespaces::new(["td"], |_| Vec::new()).unwrap();
            std::process::abort();
        }
        let Some(two) = Namespaces::new(["te"], |_| Vec::new()) else { return };
        let mut child = Command::new(std::env::current_exe().unwrap());
        let mut child = child.args([NAME, "--exact"]).env(CHILD, "1").stdout(Stdio::null()).spawn().unwrap();
        let name = format!("instd{}x0", child.id());
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGABRT));
        let start = std::time::Instant::now();
        while ip("netns list").unwrap().contains(&name) {
            assert!(start.elapsed().as_secs() < 20, "{name} is still there");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // That of this process is.
        assert!(ip("netns list").unwrap().contains(two.name(0)));
    }
}
