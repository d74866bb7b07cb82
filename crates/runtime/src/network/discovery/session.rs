//! A session with Zenoh.

use crate::network::discovery::Word;
use crate::network::discovery::presence::{Entry, all_keys};
use crate::network::discovery::way::Way;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use zenoh::Wait;
use zenoh::liveliness::LivelinessToken;
use zenoh::pubsub::Subscriber;
use zenoh::sample::SampleKind;

impl Way {
    pub(crate) fn config(&self) -> Result<zenoh::Config, String> {
        let mut config = zenoh::Config::default();
        for (key, value) in self.settings() {
            config.insert_json5(key, &value).map_err(|e| format!("{key}: {e}"))?;
        }
        Ok(config)
    }
}

/// An open session: it says that this runtime is there, and listens for others.
pub(crate) struct Session {
    zenoh: zenoh::Session,
    subscriber: Option<Subscriber<()>>,
    _token: LivelinessToken,
    /// Something was not taken, because there was too much of it.
    pub(crate) missed: Arc<AtomicBool>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Opens one. Waits for the connection to be made, at most [`OPEN_MS`] and what it takes to give up.
    pub(crate) fn open(way: &Way, number: u64, realm: &str, own: Entry, to: &SyncSender<Word>) -> Result<Self, String> {
        let text = |e: zenoh::Error| e.to_string();
        let zenoh = zenoh::open(way.config()?).wait().map_err(text)?;
        let here = zenoh.liveliness().declare_token(own.key(realm)).wait().map_err(text)?;
        let mut session = Self { zenoh, subscriber: None, _token: here, missed: Arc::default() };
        session.listen(number, realm, to)?;
        Ok(session)
    }

    /// Asks for all that is there, and then for what changes.
    pub(crate) fn listen(&mut self, number: u64, realm: &str, to: &SyncSender<Word>) -> Result<(), String> {
        // The old one says nothing more once it is gone.
        drop(self.subscriber.take());
        self.missed.store(false, Ordering::Relaxed);
        let (to, missed) = (to.clone(), self.missed.clone());
        let subscriber = self
            .zenoh
            .liveliness()
            .declare_subscriber(all_keys(realm))
            .history(true)
            .callback(move |sample| {
                let there = sample.kind() == SampleKind::Put;
                // A key that is far too long for an entry is cut here already, so that it costs no memory to refuse it.
                let key: String = sample.key_expr().as_str().chars().take(256).collect();
                if to.try_send(Word::Entry { session: number, key, there }).is_err() {
                    missed.store(true, Ordering::Relaxed);
                }
            })
            .wait()
            .map_err(|e| e.to_string())?;
        self.subscriber = Some(subscriber);
        Ok(())
    }

    /// Whether it is connected to anybody.
    pub(crate) fn is_connected(&self) -> bool {
        let info = self.zenoh.info();
        info.routers_zid().wait().next().is_some() || info.peers_zid().wait().next().is_some()
    }

    /// Ends it. May wait a while.
    pub(crate) fn close(self) {
        if let Err(e) = self.zenoh.close().wait() {
            tracing::debug!(error = %e, "directory: closing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::discovery::way::Role;
    use std::net::SocketAddr;

    #[test]
    fn zenoh_takes_every_setting_and_does_nothing_of_its_own_accord() {
        let address: SocketAddr = "10.0.0.1:7402".parse().unwrap();
        for role in [
            Role::Listener { listen: vec![address], router: None },
            Role::Listener { listen: vec![address], router: Some(vec!["10.0.1.1:7402".parse().unwrap()]) },
            Role::Connector(address),
        ] {
            let way = Way { role, interface: Some("eth7".into()), bound: Vec::new() };
            let config = way.config().unwrap();
            let text = |key: &str| config.get_json(key).unwrap();
            assert_eq!(text("scouting/multicast/enabled"), "false");
            assert_eq!(text("scouting/gossip/enabled"), "false");
            let ends = text("connect/endpoints") + &text("listen/endpoints");
            assert!(ends.contains("tcp/10.0.0.1:7402#iface=eth7"), "{ends}");
            assert_eq!(ends.matches("tcp/").count(), ends.matches("#iface=eth7").count(), "{ends}");
        }
        let bound = vec![(address.ip(), "eth8".to_owned())];
        let way = Way { role: Role::Listener { listen: vec![address], router: None }, interface: None, bound };
        assert!(way.endpoints(&[address]).contains("#iface=eth8"));
    }
}
