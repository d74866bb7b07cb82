//! `insane metrics`: the runtime's status for Prometheus, on standard output, in a file or over HTTP.

mod series;
mod serve;

use crate::common::{Context, Failure, Outcome};
use insane_arguments::whole;
use series::Format;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Print or serve what `status` counts as metrics for Prometheus: OpenMetrics text on standard output.
#[derive(Debug, clap::Args)]
pub(crate) struct Metrics {
    /// Write this file at once as a whole, in the text format 0.0.4 that node_exporter's textfile collector reads.
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    write: Option<PathBuf>,
    /// Serve /metrics over HTTP at this address, until interrupted; a port alone is one of 127.0.0.1. A connection lasts a minute.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// With --listen: let other hosts ask too. Whoever reaches the address reads what the command's user may see.
    #[arg(long, requires = "listen")]
    beyond_loopback: bool,
    /// How many series there may be, with insane_left_out_series, which says how many more there are.
    #[arg(long, value_name = "COUNT", default_value = "10000", value_parser = whole(1, 1_000_000))]
    most_series: u64,
}

/// Reads `ADDRESS:PORT` or a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = || text.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let address = port().or_else(|| text.parse().ok());
    address.ok_or_else(|| "it takes a port, or ADDRESS:PORT such as 127.0.0.1:9464 or [::1]:9464".to_owned())
}

impl Metrics {
    pub(crate) fn run(&self, context: &Context) -> Outcome {
        if let Some(address) = self.listen {
            self.allow(address.ip()).map_err(Failure::usage)?;
            let (context, most) = (context.clone(), self.most_series);
            return serve::serve(address, move |format| text(&context, most, format));
        }
        match &self.write {
            Some(file) => {
                let text = text(context, self.most_series, Format::Prometheus)?;
                replace(file, &text).map_err(|why| Failure {
                    number: insane::Code::System.number(),
                    text: format!("--write <FILE> is '{}': {why}", file.display()),
                    usage: false,
                })
            }
            None => {
                let text = text(context, self.most_series, Format::OpenMetrics)?;
                if context.json {
                    let why = "--json is given: metrics are no JSON, `insane status --json` is the same as JSON";
                    return Err(Failure::usage(why));
                }
                Ok(std::io::stdout().write_all(text.as_bytes())?)
            }
        }
    }

    fn allow(&self, address: IpAddr) -> Result<(), String> {
        if address.is_loopback() || self.beyond_loopback {
            return Ok(());
        }
        Err(format!(
            "--listen <ADDRESS> is '{address}': it takes an address of this host alone, such as 127.0.0.1, or --beyond-loopback \
             beside it: other hosts can ask there"
        ))
    }
}

/// What the runtime says now. Blocks for its answer.
fn text(context: &Context, most_series: u64, format: Format) -> Result<String, Failure> {
    let session = context.session("insane metrics")?;
    let status = crate::look::asked(&session, "status")?;
    let most = usize::try_from(most_series).unwrap_or(usize::MAX);
    let metrics = series::Metrics::new(&status, &session.id().to_string(), most);
    metrics.text(format).map_err(|why| Failure {
        number: insane::Code::System.number(),
        text: format!("the metrics cannot be written as text: {why}"),
        usage: false,
    })
}

/// Puts a file in the place of another: whoever reads it finds the old one or the new one, whole.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // node_exporter runs as a user of its own, and reads no file whose name ends otherwise than in .prom.
    let mut new = tempfile::Builder::new().prefix(".insane-metrics-").tempfile_in(folder)?;
    new.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    new.write_all(text.as_bytes())?;
    new.persist(file).map_err(|why| why.error)?;
    Ok(())
}

#[cfg(test)]
mod tests;
