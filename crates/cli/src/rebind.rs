//! `insane rebind`: streams go over another datapath.

use crate::beside::{ask, parse_kind};
use crate::common::{Context, Failure, Outcome, parse_name};
use insane::Code;
use insane_runtime::config::Kind;
use insane_wire::control::{self, to_client, to_runtime};

/// Move streams from this host to others to another datapath, while they run. It holds for what they open later too, until it is
/// asked for otherwise or the runtime ends; while that datapath does not stand, the policy's table holds. Only root and the
/// runtime's own user may.
#[derive(Debug, clap::Args)]
pub(crate) struct Rebind {
    /// The datapath: udp, xdp, dpdk or plugin; auto for what the policy's table says.
    #[arg(long, value_name = "KIND", value_parser = parse_wanted)]
    datapath: Wanted,
    /// Only this stream.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    stream: Option<String>,
    /// Only towards the host of this name.
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    host: Option<String>,
}

/// A datapath, or what the table says.
#[derive(Debug, Clone, Copy)]
struct Wanted(Option<Kind>);

fn parse_wanted(text: &str) -> Result<Wanted, String> {
    match text {
        "auto" => Ok(Wanted(None)),
        _ => parse_kind(text).map(|kind| Wanted(Some(kind))).map_err(|takes| format!("{takes} or auto")),
    }
}

impl Rebind {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        // A request needs none, but with one `insane status` shows who asks, and a wrong domain is told as everywhere.
        let _session = context.session("insane rebind")?;
        let (_, connection) = insane::connect_first(context.socket.as_deref())?;
        let wanted = control::Rebind {
            stream: self.stream.clone().unwrap_or_default(),
            host: self.host.clone().unwrap_or_default(),
            datapath: self.datapath.0.map(|kind| kind.name().to_owned()).unwrap_or_default(),
        };
        let to_client::Body::Rebound(rebound) =
            ask(&connection, to_runtime::Body::Rebind(wanted), &[], "move streams")?
        else {
            return Err(Failure::from(insane::Error::from(Code::Protocol)));
        };
        let (moving, there, later) = (rebound.moving, rebound.there, rebound.later);
        if context.json {
            say!("{}", serde_json::json!({ "moving": moving, "there": there, "later": later }));
            return Ok(());
        }
        let to = self.datapath.0.map_or("where the table says", Kind::name);
        let flows = |count: u32| if count == 1 { "1 flow".to_owned() } else { format!("{count} flows") };
        say!("to {to}: {} moving, {there} there already, {later} when accepted", flows(moving));
        Ok(())
    }
}
