use super::*;
use crate::ip::{Fragment, UDP};
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds { packets: 8, bytes: 64 * 2048, source_packets: 4, source_bytes: 40 * 2048, smallest: 8 };

fn piece(from: u8, ident: u32, offset: u16, more: bool, payload: &[u8]) -> (Ip, Vec<u8>) {
    let ip = Ip {
        from: IpAddr::from([10, 0, 0, from]),
        to: IpAddr::from([10, 0, 0, 99]),
        protocol: UDP,
        hop_limit: 7,
        header: 3,
        end: 3 + payload.len(),
        fragment: Some(Fragment { ident, offset, more }),
        dont_fragment: false,
        extended: false,
    };
    (ip, [b"hdr", payload, b"pad"].concat())
}

fn offer(
    r: &mut Reassembly,
    now: u64,
    from: u8,
    ident: u32,
    at: u16,
    more: bool,
    payload: &[u8],
) -> Result<Option<Vec<u8>>, Reason> {
    let mut out = vec![0; 65_575];
    let (ip, bytes) = piece(from, ident, at, more, payload);
    r.offer(now, &ip, &bytes, &mut out).map(|len| len.map(|len| out[..len].to_vec()))
}

fn content(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn a_packet_is_whole_when_all_pieces_are_there() {
    let mut r = Reassembly::new(BOUNDS);
    assert_eq!(offer(&mut r, 0, 1, 5, 16, false, &content(16, 5)), Ok(None));
    assert_eq!(offer(&mut r, 0, 1, 5, 0, true, &content(0, 8)), Ok(None));
    assert_eq!(offer(&mut r, 0, 1, 5, 0, true, &content(0, 8)), Ok(None));
    let whole = offer(&mut r, 0, 1, 5, 8, true, &content(8, 8)).unwrap().unwrap();
    let ip = Ip::parse_v4(&whole).unwrap();
    assert_eq!((ip.hop_limit, ip.fragment, &whole[20..]), (7, None, &content(0, 21)[..]));
    assert_eq!((r.len(), r.blocks.free()), (0, 64));
}

#[test]
fn overlaps_and_contradictions_spoil_the_packet() {
    type Piece = (u16, bool, usize);
    let cases: [[Piece; 2]; 5] = [
        // Teardrop: the second lies within the first, with other bytes; then partial overlaps, a second end, a piece
        // beyond the end.
        [(0, true, 40), (8, false, 4)],
        [(0, true, 24), (16, true, 16)],
        [(16, true, 16), (8, true, 16)],
        [(16, false, 4), (16, false, 12)],
        [(8, false, 4), (16, true, 8)],
    ];
    for [first, second] in cases {
        let mut r = Reassembly::new(BOUNDS);
        assert_eq!(offer(&mut r, 0, 1, 5, first.0, first.1, &vec![1; first.2]), Ok(None));
        let bad = offer(&mut r, 0, 1, 5, second.0, second.1, &vec![2; second.2]);
        assert_eq!(bad, Err(Reason::FragmentOverlap), "{first:?} {second:?}");
        assert_eq!(offer(&mut r, 0, 1, 5, 48, true, &[1; 8]), Err(Reason::FragmentOfDropped));
        assert_eq!(r.blocks.free(), 64);
        assert_eq!(r.expire(V4_PATIENCE_NS).map(|(spoiled, told)| (spoiled, told.is_some())), Some((true, false)));
        assert!(offer(&mut r, 0, 1, 5, 0, true, &[1; 8]).is_ok());
    }
}

#[test]
fn pieces_that_cannot_be() {
    let mut r = Reassembly::new(Bounds { smallest: 256, ..BOUNDS });
    for (at, more, len, reason) in [
        (0, true, 0, Reason::FragmentMalformed),
        (0, true, 13, Reason::FragmentMalformed),
        (65_528, false, 8, Reason::FragmentMalformed),
        (65_512, false, 4, Reason::FragmentMalformed),
        (512, true, 248, Reason::FragmentTiny),
        (8, false, 100, Reason::FragmentTiny),
    ] {
        assert_eq!(offer(&mut r, 0, 1, 5, at, more, &vec![0; len]), Err(reason), "{at} {len}");
    }
    assert_eq!(r.len(), 0);
    assert_eq!(offer(&mut r, 0, 1, 5, 65_512, false, &[0; 3]), Ok(None));
}

#[test]
fn what_is_unfinished_is_bounded_per_source_and_in_all() {
    let mut r = Reassembly::new(BOUNDS);
    for ident in 0..4 {
        assert!(offer(&mut r, 0, 1, ident, 0, true, &[0; 8]).is_ok());
    }
    // The fifth of one source pushes out its first, not anybody else's.
    assert!(offer(&mut r, 0, 2, 0, 0, true, &[0; 8]).is_ok());
    assert!(offer(&mut r, 1, 1, 4, 0, true, &[0; 8]).is_ok());
    assert_eq!((r.evicted, r.len()), (1, 5));
    assert!(r.open.iter().all(|open| (open.id.from, open.id.ident) != (IpAddr::from([10, 0, 0, 1]), 0)));
    for from in 3..200 {
        assert!(offer(&mut r, u64::from(from), from, 0, 0, true, &[0; 8]).is_ok());
        assert!(r.len() <= 8);
    }
    // The oldest of all have made room.
    assert_eq!((r.evicted, r.len()), (195, 8));
    let mut r = Reassembly::new(BOUNDS);
    assert!(offer(&mut r, 0, 1, 0, 0, true, &[0; 30 * 2048]).is_ok());
    assert!(offer(&mut r, 1, 2, 0, 0, true, &[0; 20 * 2048]).is_ok());
    assert!(offer(&mut r, 2, 1, 1, 0, true, &[0; 20 * 2048]).is_ok());
    assert_eq!((r.blocks.free(), r.len(), r.evicted), (24, 2, 1));
    assert!(offer(&mut r, 3, 3, 0, 0, true, &[0; 30 * 2048]).is_ok());
    assert_eq!((r.blocks.free(), r.len(), r.evicted), (14, 2, 2));
    // A packet that is larger than the share of a source is never whole.
    let mut r = Reassembly::new(Bounds { source_bytes: 10 * 2048, ..BOUNDS });
    assert!(offer(&mut r, 0, 1, 0, 0, true, &[0; 8 * 2048]).is_ok());
    assert_eq!(offer(&mut r, 0, 1, 0, 8 * 2048, false, &[0; 8 * 2048]), Err(Reason::FragmentsFull));
    assert_eq!((r.len(), r.blocks.free()), (1, 56));
}

#[test]
fn what_gets_nothing_more_is_given_up_and_its_start_reported() {
    let mut r = Reassembly::new(BOUNDS);
    offer(&mut r, 5, 1, 0, 0, true, &content(0, 16)).unwrap();
    offer(&mut r, 6, 1, 1, 8, true, &content(8, 16)).unwrap();
    assert_eq!((r.next(), r.expire(5).is_none()), (5 + V4_PATIENCE_NS, true));
    let (spoiled, told) = r.expire(6 + V4_PATIENCE_NS).unwrap();
    let told = told.unwrap();
    assert_eq!((spoiled, told.len, &told.start[20..28]), (false, 28, &content(0, 8)[..]));
    assert_eq!(r.expire(6 + V4_PATIENCE_NS).map(|(_, told)| told.is_none()), Some(true));
    assert_eq!((r.len(), r.next(), r.blocks.free()), (0, u64::MAX, 64));
}

proptest! {
    /// Any pieces, in any order, against one optional byte for each place.
    #[test]
    fn reassembly_is_what_a_plain_model_says(
        pieces in proptest::collection::vec((0u16..24, 1u16..10, 0usize..8, any::<bool>(), 0u8..20), 1..60)
    ) {
        let mut r = Reassembly::new(BOUNDS);
        let mut bytes: Vec<Option<u8>> = vec![None; 512];
        let (mut total, mut spoiled, mut begun) = (None, false, false);
        for (at, eighths, odd, more, change) in pieces {
            let start = usize::from(at) * 8;
            let len = usize::from(eighths) * 8 - if more { 0 } else { odd };
            let mut payload = content(start, len);
            if change == 0 {
                payload[0] ^= 0xff;
            }
            let got = offer(&mut r, 0, 1, 1, start as u16, more, &payload);
            if spoiled {
                prop_assert_eq!(got, Err(Reason::FragmentOfDropped));
                continue;
            }
            let end = start + len;
            let known_end = bytes.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
            let there: Vec<Option<u8>> = bytes[start..end].to_vec();
            let beyond = total.is_some_and(|total| end > total || !more && end != total) || !more && known_end > end;
            let some = there.iter().any(Option::is_some);
            let same = there.iter().zip(&payload).all(|(there, new)| *there == Some(*new));
            if beyond || some && !same {
                prop_assert_eq!(got, Err(Reason::FragmentOverlap));
                (spoiled, begun) = (true, true);
                continue;
            }
            begun = true;
            if !same {
                for (place, byte) in bytes[start..end].iter_mut().zip(&payload) {
                    *place = Some(*byte);
                }
                if !more {
                    total = Some(end);
                }
            }
            let whole = total.is_some_and(|total| bytes[..total].iter().all(Option::is_some));
            let expected = whole.then(|| bytes.iter().map_while(|byte| *byte).collect::<Vec<u8>>());
            prop_assert_eq!(got.map(|whole| whole.map(|whole| whole[20..].to_vec())), Ok(expected));
            if whole {
                (bytes, total, begun) = (vec![None; 512], None, false);
            }
        }
        prop_assert_eq!(r.len(), usize::from(begun));
    }
}
