//! Which threads the network side has, and on which core each is.

use insane_datapath::thread::pin;
use serde_json::{Value, json};

/// A thread, for reports.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub(crate) name: String,
    /// Where it is, or why not where it should be.
    pub(crate) at: Result<String, String>,
}

impl Thread {
    /// The calling thread, which is to be on `core` alone unless that is below 0. That it cannot be is logged, no more.
    pub(crate) fn settle(name: &str, core: i32) -> Self {
        let at = match usize::try_from(core).map(pin) {
            Err(_) => Ok("on any core".to_owned()),
            Ok(Ok(())) => Ok(format!("on core {core}")),
            Ok(Err(e)) => Err(format!("on any core: {e}")),
        };
        if let Err(why) = &at {
            tracing::warn!(thread = name, why, "thread not on its core");
        }
        Self { name: name.to_owned(), at }
    }

    /// The owner's of a network side that is polled: where that is, is the owner's affair.
    pub(crate) fn of_owner(name: &str, core: i32) -> Self {
        let at = match core {
            ..0 => Ok("polled by its owner".to_owned()),
            _ => Err(format!("polled by its owner, who alone says on which core: not on core {core}")),
        };
        Self { name: name.to_owned(), at }
    }

    /// For a report.
    pub(crate) fn report(&self) -> Value {
        let (state, text) = match &self.at {
            Ok(text) => ("ok", text),
            Err(text) => ("warn", text),
        };
        json!({"name": self.name, "state": state, "text": text})
    }
}
