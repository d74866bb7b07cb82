//! The namespaces of one lab: made here, named after this process, and always removed.

use std::fs::File;
use std::path::Path;

use super::process::call;
use super::{HostError, sys};
use crate::config::Config;

/// The address that programs of the UEs know the server by.
pub const SERVER: &str = "10.44.0.1";
/// The core's end of the link to the server.
const CORE: &str = "10.44.0.2";

/// The address of a UE, by position.
#[must_use]
pub fn address(ue: usize) -> String {
    format!("10.45.0.{}", ue + 10)
}

/// Which UE an IPv4 packet is for.
#[must_use]
pub fn destination(packet: &[u8]) -> Option<usize> {
    match packet {
        [first, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, 10, 45, 0, host, ..] if first >> 4 == 4 => {
            usize::from(*host).checked_sub(10)
        }
        _ => None,
    }
}

/// The namespaces and devices of a lab.
#[derive(Debug)]
pub struct Namespaces {
    names: Vec<String>,
    /// The device in the core.
    pub core: File,
    /// The devices of the UEs.
    pub ues: Vec<File>,
}

/// Removes the namespaces when it goes, also half-made ones.
#[derive(Debug)]
struct Cleaner(Vec<String>);

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| remove(name));
    }
}

fn remove(name: &str) {
    if Path::new("/run/netns").join(name).exists()
        && let Err(error) = call("ip", &["netns", "del", name])
    {
        eprintln!("ranlab: {error}");
    }
}

/// Removes what labs left behind that were killed. Namespaces of processes that live are left alone.
pub fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("rl-").and_then(|rest| rest.split_once('-')).map(|(pid, _)| pid);
        if owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            remove(&name);
        }
    }
}

/// Removes what this process made, for one that is about to end without unwinding. Programs in the namespaces keep them
/// until they end.
pub fn abandon() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    let prefix = format!("rl-{}-", std::process::id());
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).for_each(|name| remove(&name));
}

impl Namespaces {
    /// Makes the namespaces srv and core, one for each UE, and what connects them.
    ///
    /// # Errors
    /// What could not be done; what had been is undone.
    pub fn new(config: &Config) -> Result<Self, HostError> {
        sweep();
        let own = |name: &str| format!("rl-{}-{name}", std::process::id());
        let ue_names: Vec<String> = config.ues.iter().map(|ue| own(&ue.name)).collect();
        let (srv, core) = (own("srv"), own("core"));
        let mut cleaner = Cleaner(Vec::new());
        for name in [&srv, &core].into_iter().chain(&ue_names) {
            call("ip", &["netns", "add", name])?;
            cleaner.0.push(name.clone());
            // TCP must not remember one run in the next, and nothing but what programs send is to be on the air.
            for (key, value) in [
                ("net.ipv6.conf.all.disable_ipv6", "1"),
                ("net.ipv6.conf.default.disable_ipv6", "1"),
                ("net.ipv4.tcp_no_metrics_save", "1"),
                ("net.ipv4.tcp_ecn", if config.host.ecn { "1" } else { "2" }),
                ("net.ipv4.tcp_rmem", &format!("4096 131072 {}", config.host.tcp_buffer.0)),
                ("net.ipv4.tcp_wmem", &format!("4096 131072 {}", config.host.tcp_buffer.0)),
            ] {
                sysctl(name, key, value)?;
            }
            call("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        sysctl(&core, "net.ipv4.ip_forward", "1")?;
        let mtu = config.host.mtu.to_string();
        let link =
            ["-n", &srv, "link", "add", "s0", "mtu", &mtu, "type", "veth", "peer", "name", "c0", "mtu", &mtu, "netns"];
        call("ip", &[&link[..], &[core.as_str()]].concat())?;
        for (namespace, device, own, peer) in [(&srv, "s0", SERVER, CORE), (&core, "c0", CORE, SERVER)] {
            call("ip", &["-n", namespace, "addr", "add", own, "peer", peer, "dev", device])?;
            call("ip", &["-n", namespace, "link", "set", device, "txqueuelen", "2000", "up"])?;
        }
        let congestion = congestion(config);
        let route = ["-n", &srv, "route", "add", "10.45.0.0/24", "via", CORE];
        call("ip", &[&route[..], &congestion].concat())?;
        let gnb = device(&core, "gnb", &mtu, None)?;
        call("ip", &["-n", &core, "route", "add", "10.45.0.0/24", "dev", "gnb"])?;
        let mut ues = Vec::new();
        for (n, name) in ue_names.iter().enumerate() {
            ues.push(device(name, "ran0", &mtu, Some(&address(n)))?);
            let route = ["-n", name, "route", "add", "default", "dev", "ran0", "src", &address(n)];
            call("ip", &[&route[..], &congestion].concat())?;
        }
        Ok(Self { names: std::mem::take(&mut cleaner.0), core: gnb, ues })
    }

    /// The server's namespace.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.names[0]
    }

    /// A UE's namespace, by position.
    #[must_use]
    pub fn ue(&self, n: usize) -> &str {
        &self.names[n + 2]
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| remove(name));
    }
}

/// What a route says of congestion control. The sysctl of a namespace takes only what the host allows everyone; a route
/// takes any that there is.
fn congestion(config: &Config) -> Vec<&str> {
    match config.host.congestion_control.as_str() {
        "" => Vec::new(),
        name => vec!["congctl", name],
    }
}

fn sysctl(namespace: &str, key: &str, value: &str) -> Result<(), HostError> {
    let file = format!("/proc/sys/{}", key.replace('.', "/"));
    // By way of a shell, because /proc/sys/net shows the namespace of the process that looks.
    let line = format!("if [ -e {file} ]; then echo '{value}' > {file}; fi");
    call("ip", &["netns", "exec", namespace, "sh", "-c", &line]).map(|_| ())
}

fn device(namespace: &str, name: &str, mtu: &str, address: Option<&str>) -> Result<File, HostError> {
    let what = format!("TUN device {name} in {namespace}");
    let file = sys::open_tun(namespace, name).map_err(|e| HostError::new(what, e))?;
    if let Some(address) = address {
        call("ip", &["-n", namespace, "addr", "add", address, "dev", name])?;
    }
    call("ip", &["-n", namespace, "link", "set", name, "mtu", mtu, "txqueuelen", "2000", "up"])?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_find_their_ue_by_address_and_others_find_none() {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[10, 45, 0, 12]);
        assert_eq!(destination(&packet), Some(2));
        assert_eq!(address(2), "10.45.0.12");
        packet[19] = 3;
        assert_eq!(destination(&packet), None);
        packet[16] = 11;
        assert_eq!(destination(&packet), None);
        assert_eq!(destination(&[0x60; 40]), None);
        assert_eq!(destination(&[0x45; 19]), None);
    }
}
