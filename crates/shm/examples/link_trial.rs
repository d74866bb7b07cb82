//! A trial of the bare link against the method of the floor: `link_trial CORE_A CORE_B`.
//! Threads of one process share the memory as two processes would; the payload is written, read whole and answered.
use insane_shm::link::{Consumer, Descriptor, Fate, Producer, pair_on_heap};
use insane_shm::segment::{Geometry, Segment};
use insane_shm::slab::{Slab, SlotId};
use std::sync::Arc;
use std::time::Instant;

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).expect("the core exists");
}

fn get(c: &mut Consumer) -> [u64; 8] {
    loop {
        if let Some(d) = c.poll().unwrap() {
            c.release(&d.descriptor, Fate::AsCounted);
            return d.inline;
        }
    }
}

fn put(p: &mut Producer, seq: u64, bytes: &[u8; 64]) {
    if p.credit() == 0 {
        while p.reclaim(|_| ()).unwrap() == 0 {}
    }
    p.push(&Descriptor { sequence: seq, length: 64, ..Descriptor::default() }, bytes);
}

fn rtt(a: usize, b: usize, n: u64, fence: bool) -> u64 {
    let (mut p1, mut c1) = pair_on_heap(1024);
    let (mut p2, mut c2) = pair_on_heap(1024);
    let echo = std::thread::spawn(move || {
        pin(b);
        for i in 0..n + 10_000 {
            let v = get(&mut c1);
            put(&mut p2, i, &[v[0] as u8; 64]);
            if fence {
                p2.wake();
            }
        }
    });
    pin(a);
    let mut t = Vec::with_capacity(n as usize);
    for i in 0..n + 10_000 {
        let s = Instant::now();
        put(&mut p1, i, &[i as u8; 64]);
        if fence {
            p1.wake();
        }
        let v = get(&mut c2);
        assert_eq!(v[7] as u8, i as u8);
        if i >= 10_000 {
            t.push(s.elapsed().as_nanos() as u64);
        }
    }
    echo.join().unwrap();
    t.sort_unstable();
    t[t.len() / 2]
}

fn oneway(a: usize, b: usize, payload: usize, n: u64, batch: u64) -> f64 {
    let (mut p, mut c) = pair_on_heap(1024);
    let segment = Arc::new(Segment::create(Geometry::checked(1024, 2048).unwrap(), false).unwrap());
    let mut slab = Slab::default();
    slab.add(segment.clone(), |_| true).unwrap();
    p.add_segment(0, 2048);
    c.add_segment(0, 2048, 1024);
    let reader = std::thread::spawn(move || {
        pin(b);
        let mut sum = 0u64;
        let mut start = Instant::now();
        for i in 0..n {
            if i == 10_000 {
                start = Instant::now();
            }
            let d = loop {
                if let Some(d) = c.poll().unwrap() {
                    break d;
                }
                c.settle_if_short();
            };
            if d.is_inline() {
                sum += d.inline.iter().sum::<u64>();
            } else {
                let at = segment.slot(d.descriptor.slot).cast::<u64>();
                // SAFETY: a trial in one process; the slot is held.
                let words = unsafe { std::slice::from_raw_parts(at.as_ptr(), payload / 8) };
                sum = sum.wrapping_add(words.iter().fold(0u64, |a, w| a.wrapping_add(*w)));
            }
            c.release(&d.descriptor, Fate::AsCounted);
        }
        std::hint::black_box(sum);
        (n - 10_000) as f64 / start.elapsed().as_secs_f64()
    });
    pin(a);
    for i in 0..n {
        if payload <= 64 {
            put(&mut p, i, &[i as u8; 64]);
        } else {
            let taken = loop {
                if p.credit() > 0 && slab.available(1024) > 0 {
                    break slab.take(1024).unwrap();
                }
                p.reclaim(|r| {
                    if let insane_shm::link::Returned::Slot { segment, slot, .. } = r {
                        slab.unhold(SlotId { segment, slot });
                    }
                })
                .unwrap();
            };
            // SAFETY: the slot is ours.
            unsafe { taken.base.as_ptr().write_bytes(i as u8, payload) };
            p.push(
                &Descriptor { sequence: i, slot: taken.id.slot, length: payload as u32, ..Descriptor::default() },
                &[],
            );
        }
        if batch > 0 && i % batch == 0 {
            p.wake();
        }
    }
    reader.join().unwrap()
}

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().expect("a core")).collect();
    let (a, b) = (args[0], args[1]);
    println!("rtt 64 B: {} ns without fences, {} with", rtt(a, b, 200_000, false), rtt(a, b, 200_000, true));
    for payload in [64, 1024] {
        for batch in [0, 1, 32] {
            println!(
                "oneway {payload} B, fence every {batch}: {:.1} M/s",
                oneway(a, b, payload, 5_000_000, batch) / 1e6
            );
        }
    }
}
