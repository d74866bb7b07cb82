//! The media driver: embedded in one of the ends and run by its thread, or a process of its own.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use bench_harness::{Args, Control, Waiting};
use rusteron_media_driver::bindings::aeron_threading_mode_t;
use rusteron_media_driver::{AeronDriver, AeronDriverContext};

/// Largest message in one piece; the default of 1408 bytes would cut the larger ones.
const MTU_BYTES: usize = 16 << 10;
/// Length of a term of a log buffer: three of them make a channel, half of one is its window.
const TERM_BYTES: usize = 4 << 20;

/// Between two hosts: the kernel's buffers of each socket, and how much a receiver lets a sender send before it has answered.
const SOCKET_BUFFER_BYTES: usize = 2 << 20;
const WINDOW_BYTES: usize = 1 << 20;

/// Where driver and clients of a host meet.
pub fn folder(args: &Args) -> Result<CString> {
    let name = if args.host() == 0 { "aeron" } else { "aeron-1" };
    Ok(CString::new(args.dir.join(name).display().to_string())?)
}

fn launch(args: &Args) -> Result<AeronDriver> {
    let context = AeronDriverContext::new()?;
    context.set_dir(&folder(args)?)?;
    context.set_dir_delete_on_start(true)?;
    context.set_dir_delete_on_shutdown(true)?;
    context.set_threading_mode(aeron_threading_mode_t::AERON_THREADING_MODE_INVOKER)?;
    context.set_ipc_mtu_length(MTU_BYTES)?;
    context.set_ipc_term_buffer_length(TERM_BYTES)?;
    context.set_term_buffer_sparse_file(false)?;
    if args.two_hosts() {
        // The MTU stays as it is: a datagram is a frame of the usual cable.
        context.set_term_buffer_length(TERM_BYTES)?;
        context.set_socket_so_rcvbuf(SOCKET_BUFFER_BYTES)?;
        context.set_socket_so_sndbuf(SOCKET_BUFFER_BYTES)?;
        context.set_rcv_initial_window_length(WINDOW_BYTES)?;
    }
    let driver = AeronDriver::new(&context)?;
    driver.start(true).context("starting the media driver")?;
    Ok(driver)
}

/// An embedded driver. Before the flow begins a thread runs it, so that the other end can register; then it belongs to
/// the thread that carries the messages.
pub enum Embedded {
    /// No driver in this process.
    None,
    /// Run by a thread until asked to hand over.
    Waiting(Arc<AtomicBool>, JoinHandle<Result<AeronDriver>>),
    /// Run by whoever calls [`Embedded::work`].
    Here(AeronDriver),
}

impl Embedded {
    /// Starts a driver in this process.
    pub fn start(args: &Args) -> Result<Self> {
        let driver = launch(args)?;
        let hand_over = Arc::new(AtomicBool::new(false));
        let asked = hand_over.clone();
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                driver.main_do_work()?;
                std::thread::yield_now();
            }
            Ok(driver)
        });
        Ok(Self::Waiting(hand_over, thread))
    }

    /// One turn of the driver; the first call takes it over from its thread.
    pub fn work(&mut self) -> Result<()> {
        match self {
            Self::None => {}
            Self::Here(driver) => {
                driver.main_do_work()?;
            }
            Self::Waiting(..) => {
                if let Self::Waiting(asked, thread) = std::mem::replace(self, Self::None) {
                    asked.store(true, Ordering::Relaxed);
                    *self = Self::Here(thread.join().map_err(|_| anyhow!("the driver's thread panicked"))??);
                }
            }
        }
        Ok(())
    }
}

/// The driver as a process of its own, on its own core.
pub fn run(args: &Args, control: &Control) -> Result<()> {
    let mut driver = Embedded::start(args)?;
    control.ready()?;
    control.await_go()?;
    driver.work()?;
    let Embedded::Here(driver) = driver else {
        return Err(anyhow!("the driver was not handed over"));
    };
    let stop = control.stop();
    while !stop.requested() {
        let done = driver.main_do_work()?;
        if args.waiting == Waiting::Adaptive {
            driver.main_idle_strategy(done);
        }
    }
    Ok(())
}
