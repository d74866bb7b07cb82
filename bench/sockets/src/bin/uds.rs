//! Unix stream sockets.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use anyhow::{Context, Result};
use bench_harness::Args;
use bench_sockets::stream::{Kind, Stream};

struct Uds;

fn path(args: &Args, index: u32) -> PathBuf {
    args.dir.join(format!("sink-{index}"))
}

impl Kind for Uds {
    const NAME: &'static str = "uds";
    type Listener = UnixListener;

    fn listen(args: &Args, index: u32) -> Result<UnixListener> {
        let path = path(args, index);
        UnixListener::bind(&path).with_context(|| format!("binding {}", path.display()))
    }

    fn accept(listener: &UnixListener) -> Result<OwnedFd> {
        Ok(listener.accept()?.0.into())
    }

    fn connect(args: &Args, index: u32) -> Result<OwnedFd> {
        let path = path(args, index);
        Ok(UnixStream::connect(&path).with_context(|| format!("connecting to {}", path.display()))?.into())
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Stream<Uds>>()
}
