//! TCP, Nagle's delay off.
#![forbid(unsafe_code)]

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use bench_harness::Args;
use bench_sockets::meet::{learn_port, tell_port};
use bench_sockets::stream::{Kind, Stream};

struct Tcp;

impl Kind for Tcp {
    const NAME: &'static str = "tcp";
    const TWO_HOSTS: bool = true;
    type Listener = TcpListener;

    fn listen(args: &Args, index: u32) -> Result<TcpListener> {
        let listener = TcpListener::bind((args.own, 0)).context("binding a port")?;
        tell_port(&args.dir, index, listener.local_addr()?.port())?;
        Ok(listener)
    }

    fn accept(listener: &TcpListener) -> Result<OwnedFd> {
        let socket = listener.accept()?.0;
        socket.set_nodelay(true)?;
        Ok(socket.into())
    }

    fn connect(args: &Args, index: u32) -> Result<OwnedFd> {
        let socket = TcpStream::connect((args.peer, learn_port(&args.dir, index)?))?;
        socket.set_nodelay(true)?;
        Ok(socket.into())
    }
}

fn main() -> Result<()> {
    bench_harness::main::<Stream<Tcp>>()
}
