//! Moving streams to another datapath on request: who may, and what is remembered of it.

use crate::config::Kind;
use crate::core::{Credentials, NO_NETWORK};
use insane_wire::control;
use insane_wire::error::Code;

/// The most requests that are remembered: one per stream and host.
const MOST: usize = 1024;

/// Why a request is refused.
pub(crate) type Refusal = (Code, String);

/// A request that can be read, of somebody who may make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The stream's name; `None` for all.
    pub(crate) stream: Option<String>,
    /// The host's; `None` for all.
    pub(crate) host: Option<String>,
    /// The datapath; `None` for what the table says.
    pub(crate) kind: Option<Kind>,
}

impl Asked {
    pub(crate) fn is_for(&self, stream: &str, host: &str) -> bool {
        self.stream.as_deref().is_none_or(|own| own == stream) && self.host.as_deref().is_none_or(|own| own == host)
    }

    /// Whether everything that it is for is what another is for, too.
    fn is_part_of(&self, other: &Self) -> bool {
        (other.stream.is_none() || other.stream == self.stream) && (other.host.is_none() || other.host == self.host)
    }
}

/// What was asked for, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Requests(Vec<Asked>);

impl Requests {
    /// The datapath that was asked for last for a stream towards a host, if it was.
    pub(crate) fn kind(&self, stream: &str, host: &str) -> Option<Kind> {
        self.0.iter().rev().find(|asked| asked.is_for(stream, host)).and_then(|asked| asked.kind)
    }

    /// Remembers a request. What it replaces is forgotten.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn add(&mut self, asked: Asked) -> Result<(), Refusal> {
        self.0.retain(|earlier| !earlier.is_part_of(&asked));
        if self.0.len() >= MOST {
            let text = format!("{MOST} requests for streams are remembered, and no more: take some back");
            return Err((Code::QuotaExceeded, text));
        }
        // If nothing is left that it could be an exception of, the table holds without it.
        if asked.kind.is_some() || !self.0.is_empty() {
            self.0.push(asked);
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Reads a request.
///
/// # Errors
/// Why it is refused, for the client.
pub(crate) fn check(wanted: &control::Rebind, who: Credentials, networked: bool) -> Result<Asked, Refusal> {
    // Streams of all users go over the datapaths.
    if !who.is_operator() {
        let text = "only root and the runtime's own user may move streams: they are of all users";
        return Err((Code::NotPermitted, text.into()));
    }
    if !networked {
        return Err((Code::NotFound, NO_NETWORK.into()));
    }
    let kind = match wanted.datapath.as_str() {
        "" => None,
        name => Some(Kind::of(name).ok_or_else(|| {
            let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            (Code::InvalidArgument, format!("no datapath is called `{name}`: there are {}", names.join(", ")))
        })?),
    };
    let some = |name: &String| (!name.is_empty()).then(|| name.clone());
    Ok(Asked { stream: some(&wanted.stream), host: some(&wanted.host), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(stream: &str, host: &str, kind: Option<Kind>) -> Asked {
        let some = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        Asked { stream: some(stream), host: some(host), kind }
    }

    #[test]
    fn the_latest_request_holds_and_replaces_what_it_covers() {
        let mut requests = Requests::default();
        requests.add(asked("", "", Some(Kind::Udp))).unwrap();
        requests.add(asked("e2", "", Some(Kind::Xdp))).unwrap();
        requests.add(asked("e2", "ric", None)).unwrap();
        assert_eq!(requests.kind("a1", "ric"), Some(Kind::Udp));
        assert_eq!(requests.kind("e2", "ran"), Some(Kind::Xdp));
        assert_eq!(requests.kind("e2", "ric"), None, "the table holds for it");
        requests.add(asked("e2", "", Some(Kind::Dpdk))).unwrap();
        assert_eq!((requests.kind("e2", "ric"), requests.len()), (Some(Kind::Dpdk), 2));
        requests.add(asked("", "", None)).unwrap();
        assert_eq!((requests.kind("e2", "ric"), requests.len()), (None, 0));
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let mut requests = Requests::default();
        for n in 0..MOST {
            requests.add(asked(&n.to_string(), "", Some(Kind::Udp))).unwrap();
        }
        requests.add(asked("7", "", Some(Kind::Xdp))).unwrap();
        let refused = requests.add(asked("one more", "", Some(Kind::Udp))).unwrap_err();
        assert_eq!(refused.0, Code::QuotaExceeded);
    }

    #[test]
    fn only_root_and_the_own_user_may_and_names_must_be_known() {
        let own = Credentials { pid: Some(1), uid: rustix::process::getuid().as_raw(), gid: 0 };
        let wanted = |datapath: &str| control::Rebind { datapath: datapath.into(), ..control::Rebind::default() };
        assert_eq!(check(&wanted("xdp"), own, true), Ok(asked("", "", Some(Kind::Xdp))));
        assert_eq!(check(&wanted(""), own, true), Ok(asked("", "", None)));
        assert_eq!(check(&wanted("tcp"), own, true).unwrap_err().0, Code::InvalidArgument);
        assert_eq!(check(&wanted("xdp"), own, false).unwrap_err().0, Code::NotFound);
        let other = Credentials { uid: own.uid + 1, ..own };
        assert_eq!(check(&wanted("xdp"), other, true).unwrap_err().0, Code::NotPermitted);
    }
}
