//! A port by the calls of `port.c`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench_harness::frames::Frames;
use bench_harness::{ADAPTIVE_SPIN, Waiting};

type Mbuf = *mut c_void;

/// The most frames of one call; what `port.c` receives at most.
const BURST: usize = 32;
/// A queue of AF_XDP that another process just had is busy for up to a second; memif's client looks for its server.
const PATIENCE_MS: c_int = 3000;
/// How long the link to the other end may take.
const LINK: Duration = Duration::from_secs(10);
/// How long an adaptive end sleeps: these drivers wake nobody.
const SLEEP: Duration = Duration::from_micros(50);

unsafe extern "C" {
    fn bench_port_open(
        count: c_int,
        arguments: *mut *mut c_char,
        patience_ms: c_int,
        text: *mut c_char,
        room: usize,
    ) -> c_int;
    fn bench_port_is_up() -> c_int;
    fn bench_port_take(len: u16, bytes: *mut *mut u8) -> Mbuf;
    fn bench_port_send(frames: *mut Mbuf, count: u16) -> u16;
    fn bench_port_receive(frames: *mut Mbuf, bytes: *mut *mut u8, lens: *mut u16, count: u16) -> u16;
    fn bench_port_free(frames: *mut Mbuf, count: u16);
}

/// The process's only port, used by the thread that opened it.
#[derive(Debug)]
pub struct Port {
    put: Vec<Mbuf>,
    waiting: Waiting,
    since: Option<Instant>,
}

impl Port {
    /// Starts DPDK with these arguments, which name the device.
    pub fn open(arguments: &[String], waiting: Waiting) -> Result<Self> {
        let arguments: Vec<CString> = arguments.iter().map(|a| CString::new(a.as_str())).collect::<Result<_, _>>()?;
        // The environment keeps its arguments and reorders the list: as long as the process is.
        let arguments: &'static [CString] = Box::leak(arguments.into_boxed_slice());
        let list: Vec<*mut c_char> = arguments.iter().map(|a| a.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect();
        let list: &'static mut [*mut c_char] = Box::leak(list.into_boxed_slice());
        let (count, mut text) = (c_int::try_from(arguments.len())?, [0 as c_char; 256]);
        // SAFETY: the list is of so many strings and a null, and all of it lives for ever; the text has the room that is said.
        let code = unsafe { bench_port_open(count, list.as_mut_ptr(), PATIENCE_MS, text.as_mut_ptr(), text.len()) };
        if code != 0 {
            // SAFETY: a call that failed has written a string that ends within its room.
            bail!("{}", unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy());
        }
        Ok(Self { put: Vec::with_capacity(BURST), waiting, since: None })
    }

    /// Waits for the link to the other end.
    pub fn await_link(&self) -> Result<()> {
        let start = Instant::now();
        // SAFETY: the port is open.
        while unsafe { bench_port_is_up() } == 0 {
            if start.elapsed() > LINK {
                bail!("there is no link to the other end after {} s", LINK.as_secs());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Frames for Port {
    #[inline]
    fn put(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let mut bytes = ptr::null_mut();
        if self.put.len() == BURST {
            return false;
        }
        // SAFETY: the port is open, and the pointer is valid for writes.
        let frame = unsafe { bench_port_take(len as u16, &raw mut bytes) };
        if frame.is_null() {
            return false;
        }
        // SAFETY: a frame that was just taken has so many bytes there, and nobody else has it.
        write(unsafe { std::slice::from_raw_parts_mut(bytes, len) });
        self.put.push(frame);
        true
    }

    #[inline]
    fn flush(&mut self) -> Result<()> {
        let (mut sent, mut tried) = (0, 0u32);
        while sent < self.put.len() {
            let rest = &mut self.put[sent..];
            // SAFETY: these frames were taken and not sent; those that go are the driver's and not touched any more.
            let went = unsafe { bench_port_send(rest.as_mut_ptr(), rest.len() as u16) };
            sent += usize::from(went);
            tried += 1;
            if went == 0 && tried > 100_000_000 {
                return Err(anyhow::anyhow!("the port takes no frames")).context("sending");
            }
        }
        self.put.clear();
        Ok(())
    }

    #[inline]
    fn receive(&mut self, mut see: impl FnMut(&[u8]) -> Result<()>) -> Result<u32> {
        let (mut frames, mut bytes, mut lens) = ([ptr::null_mut(); BURST], [ptr::null_mut(); BURST], [0; BURST]);
        // SAFETY: all three have room for so many.
        let came =
            unsafe { bench_port_receive(frames.as_mut_ptr(), bytes.as_mut_ptr(), lens.as_mut_ptr(), BURST as u16) };
        if came == 0 {
            let adaptive = self.waiting == Waiting::Adaptive;
            if adaptive && self.since.get_or_insert_with(Instant::now).elapsed() > ADAPTIVE_SPIN {
                std::thread::sleep(SLEEP);
            }
            return Ok(0);
        }
        self.since = None;
        let mut seen = Ok(());
        for (bytes, len) in bytes.iter().zip(lens).take(usize::from(came)) {
            // SAFETY: the driver has filled so many bytes there, and the frame is ours until it is given back below.
            let frame = unsafe { std::slice::from_raw_parts(*bytes, usize::from(len)) };
            if seen.is_ok() {
                seen = see(frame);
            }
        }
        // SAFETY: these frames came just now, and nothing refers to their bytes any more.
        unsafe { bench_port_free(frames.as_mut_ptr(), came) };
        seen.map(|()| u32::from(came))
    }
}
