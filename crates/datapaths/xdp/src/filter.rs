//! The program that the kernel runs for each frame, made from a [`Filter`]: to a socket with INSANE's, the kernel gets the rest.
//!
//! What it does, in words (`end` is where the frame's readable part ends; before every load it is checked that what is loaded
//! lies before it, and if not the frame goes to the kernel):
//!
//! ```text
//! frame shorter than 14 bytes            -> kernel
//! step over VLAN tags, or check the one that is asked for, or that there is none but for a priority (else -> kernel)
//! destination is the station             -> socket
//! ethertype is listed                    -> socket
//! ARP, with a station: Ethernet and IPv4, target address is listed -> socket
//! IPv4: UDP, no fragment, destination listed if any are, port listed -> socket
//! IPv6: UDP, destination listed if any are, port listed              -> socket
//!       with a station: neighbour solicitation whose target is listed -> socket
//! everything else                        -> kernel
//! ```
//!
//! The program for a filter with one UDP port, untagged frames and nothing else (test: the_listing_is_the_program):
//!
//! ```text
//!   0: r9 = r1                        the context
//!   1: r6 = *(u32 *)(r9 + 0)          where the frame begins
//!   2: r7 = *(u32 *)(r9 + 4)          where it ends
//!   3: r0 = r6
//!   4: r0 += 0xe
//!   5: if r0 > r7 goto +47            no Ethernet header: pass
//!   6: r5 = r6
//!   7: r5 += 0xc
//!   8: r8 = *(u16 *)(r5 + 0)          the ethertype
//!   9: if r8 != 0x81 goto +8          no VLAN tag 0x8100: to 18
//!  10: r0 = r5                        is there a tag?
//!  11: r0 += 0x6
//!  12: if r0 > r7 goto +40
//!  13: r5 += 0x4
//!  14: r8 = *(u16 *)(r5 + 0)          the ethertype behind it
//!  15: r1 = *(u16 *)(r5 + -2)
//!  16: r1 &= 0xff0f                   the VLAN's number
//!  17: if r1 != 0x0 goto +35          not a priority alone: pass
//!  18: if r8 == 0x81 goto +34         0x8100, another VLAN tag: pass
//!  19: if r8 == 0xa888 goto +33       0x88a8, a VLAN tag: pass
//!  20: if r8 == 0x8 goto +2           0x0800, IPv4: to 23
//!  21: if r8 == 0xdd86 goto +19       0x86dd, IPv6: to 41
//!  22: goto +30                       anything else: pass
//!  23: r0 = r5                        is there an IPv4 header?
//!  24: r0 += 0x16
//!  25: if r0 > r7 goto +27
//!  26: r1 = *(u8 *)(r5 + 11)          the protocol
//!  27: if r1 != 0x11 goto +25         not UDP: pass
//!  28: r1 = *(u16 *)(r5 + 8)          flags and fragment offset
//!  29: if r1 & 0xff3f goto +23        more fragments, or not the first: pass
//!  30: r0 = *(u8 *)(r5 + 2)
//!  31: r0 &= 0xf
//!  32: r0 <<= 0x2                     the header's length
//!  33: if r0 < 0x14 goto +19          less than it can be: pass
//!  34: r5 += r0
//!  35: r0 = r5                        are there ports behind it?
//!  36: r0 += 0x6
//!  37: if r0 > r7 goto +15
//!  38: r1 = *(u16 *)(r5 + 4)          the destination port
//!  39: if r1 == 0x901f goto +15       8080: take
//!  40: goto +12                       another: pass
//!  41: r0 = r5                        is there an IPv6 header?
//!  42: r0 += 0x2a
//!  43: if r0 > r7 goto +9
//!  44: r8 = *(u8 *)(r5 + 8)           the next header
//!  45: if r8 != 0x11 goto +6          not UDP
//!  46: r0 = r5                        are there ports behind it?
//!  47: r0 += 0x2e
//!  48: if r0 > r7 goto +4
//!  49: r1 = *(u16 *)(r5 + 44)         the destination port
//!  50: if r1 == 0x901f goto +4        8080: take
//!  51: goto +1                        another: pass
//!  52: goto +0                        no other protocol is taken here: pass
//!  53: r0 = 0x2                       pass: XDP_PASS
//!  54: exit
//!  55: r2 = *(u32 *)(r9 + 16)         take: the queue's number
//!  56: r1 = map
//!  57: (second half)
//!  58: r3 = 0x2                       XDP_PASS, if the queue has no socket
//!  59: call 51                        bpf_redirect_map
//!  60: exit
//! ```

use std::net::IpAddr;

use crate::asm::{Assembler, Fault, If, Instruction, Label, R0, R1, R2, R3, R5, R6, R7, R8, R9, Size};
use crate::config::{Filter, Vlan};

// Where things are in `struct xdp_md`.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

/// What the program returns for the kernel to go on with the frame.
pub(crate) const XDP_PASS: i32 = 2;

/// What it returns for a frame that goes to a socket.
#[cfg(test)]
pub(crate) const XDP_REDIRECT: u32 = 4;

/// The helper `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

const ETHERNET_HEADER: i32 = 14;
/// Where the destination is in a frame, and where the ethertype.
const DESTINATION: i16 = 0;
const ETHERTYPE: i32 = 12;
const TAG_BYTES: i32 = 4;
const TAG_NUMBER: i32 = 0x0fff;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];

const PROTOCOL_UDP: i32 = 17;
const PROTOCOL_ICMPV6: i32 = 58;
const NEIGHBOUR_SOLICITATION: i32 = 135;

/// The cursor stands at the ethertype; what it announces begins so far behind it.
const BODY: i16 = 2;

/// A 16-bit number of the network's order as a load brings it into a register.
fn half(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// Four bytes of a frame as a load brings them into a register.
fn word(bytes: [u8; 4]) -> i32 {
    i32::from_ne_bytes(bytes)
}

/// A program under construction, with the two places where it ends.
struct Builder<'a> {
    asm: Assembler,
    filter: &'a Filter,
    pass: Label,
    take: Label,
}

/// Why there is no program for a filter.
pub(crate) fn fault(filter: &Filter) -> Option<String> {
    let most = Filter::MOST;
    let lists = [
        ("ethertypes", filter.ethertypes.len()),
        ("UDP ports", filter.udp_ports.len()),
        ("addresses", filter.addresses.len()),
    ];
    if let Some((what, count)) = lists.iter().find(|(_, count)| *count > most) {
        return Some(format!("the filter has {count} {what}, at most {most} are possible"));
    }
    if filter.ethertypes.is_empty() && filter.udp_ports.is_empty() && filter.station.is_none() {
        return Some("the filter takes no frame: give it an ethertype, a UDP port or a station".into());
    }
    if let Some(low) = filter.ethertypes.iter().find(|ethertype| **ethertype < 0x600) {
        return Some(format!("{low:#06x} is no ethertype but a length: ethertypes begin at 0x0600"));
    }
    if let Vlan::Tagged(number) = filter.vlan
        && !(1..=4094).contains(&number)
    {
        return Some(format!("a VLAN has a number from 1 to 4094, not {number}"));
    }
    match filter.station {
        Some(station) if station[0] & 1 == 1 => Some("the station's MAC address is one of a group".into()),
        Some([0, 0, 0, 0, 0, 0]) => Some("the station's MAC address is zero".into()),
        _ => None,
    }
}

/// The program for a filter, with the file descriptor of the map of sockets.
pub(crate) fn program(filter: &Filter, map: i32) -> Result<Vec<Instruction>, Fault> {
    let mut asm = Assembler::default();
    let (pass, take) = (asm.label(), asm.label());
    let mut builder = Builder { asm, filter, pass, take };
    builder.begin();
    builder.vlan();
    builder.station();
    builder.ethertypes();
    builder.end(map);
    builder.asm.assemble()
}

impl Builder<'_> {
    /// Passes the frame unless so many bytes from the cursor on are there.
    fn need(&mut self, bytes: i32) {
        self.asm.copy(R0, R5);
        self.asm.add(R0, bytes);
        self.asm.jump_if_register(R0, If::Greater, R7, self.pass);
    }

    /// R9 context, R6 the frame, R7 its end, R5 the cursor at the ethertype, R8 the ethertype.
    fn begin(&mut self) {
        let (asm, pass) = (&mut self.asm, self.pass);
        asm.copy(R9, R1);
        asm.load(Size::Word, R6, R9, CONTEXT_DATA);
        asm.load(Size::Word, R7, R9, CONTEXT_DATA_END);
        asm.copy(R0, R6);
        asm.add(R0, ETHERNET_HEADER);
        asm.jump_if_register(R0, If::Greater, R7, pass);
        asm.copy(R5, R6);
        asm.add(R5, ETHERTYPE);
        asm.load(Size::Half, R8, R5, 0);
    }

    fn vlan(&mut self) {
        match self.filter.vlan {
            Vlan::Untagged => {
                let plain = self.asm.label();
                self.asm.jump_if(R8, If::Differs, half(ETHERTYPES_VLAN[0]), plain);
                // A tag may say a priority alone: then the frame is in no VLAN.
                self.step_over_tag();
                self.check_number(0);
                self.asm.place(plain);
                for tag in ETHERTYPES_VLAN {
                    self.asm.jump_if(R8, If::Equal, half(tag), self.pass);
                }
            }
            Vlan::Tagged(number) => {
                let tagged = self.asm.label();
                for tag in ETHERTYPES_VLAN {
                    self.asm.jump_if(R8, If::Equal, half(tag), tagged);
                }
                self.asm.jump(self.pass);
                self.asm.place(tagged);
                self.step_over_tag();
                self.check_number(number);
            }
            Vlan::Any => {
                let done = self.asm.label();
                for _ in 0..2 {
                    let tagged = self.asm.label();
                    for tag in ETHERTYPES_VLAN {
                        self.asm.jump_if(R8, If::Equal, half(tag), tagged);
                    }
                    self.asm.jump(done);
                    self.asm.place(tagged);
                    self.step_over_tag();
                }
                self.asm.place(done);
            }
        }
    }

    fn step_over_tag(&mut self) {
        self.need(TAG_BYTES + i32::from(BODY));
        self.asm.add(R5, TAG_BYTES);
        self.asm.load(Size::Half, R8, R5, 0);
    }

    /// Passes the frame unless the tag that was stepped over has this number.
    fn check_number(&mut self, number: u16) {
        // The cursor has gone on: the number is between the two ethertypes.
        self.asm.load(Size::Half, R1, R5, -2);
        self.asm.and(R1, half(TAG_NUMBER as u16));
        self.asm.jump_if(R1, If::Differs, half(number), self.pass);
    }

    fn station(&mut self) {
        let Some([a, b, c, d, e, g]) = self.filter.station else { return };
        let another = self.asm.label();
        self.asm.load(Size::Word, R1, R6, DESTINATION);
        self.asm.jump_if(R1, If::Differs, word([a, b, c, d]), another);
        self.asm.load(Size::Half, R1, R6, DESTINATION + 4);
        self.asm.jump_if(R1, If::Equal, half(u16::from_be_bytes([e, g])), self.take);
        self.asm.place(another);
    }

    fn ethertypes(&mut self) {
        for ethertype in &self.filter.ethertypes {
            self.asm.jump_if(R8, If::Equal, half(*ethertype), self.take);
        }
        let (v4, v6) = self.addresses();
        let (ports, station) = (!self.filter.udp_ports.is_empty(), self.filter.station.is_some());
        let (arp, ipv4, ipv6) = (self.asm.label(), self.asm.label(), self.asm.label());
        let rules = [
            (station && !v4.is_empty(), ETHERTYPE_ARP, arp),
            (ports, ETHERTYPE_IPV4, ipv4),
            (ports || station && !v6.is_empty(), ETHERTYPE_IPV6, ipv6),
        ];
        for (wanted, ethertype, label) in rules {
            if wanted {
                self.asm.jump_if(R8, If::Equal, half(ethertype), label);
            }
        }
        if rules.iter().any(|(wanted, ..)| *wanted) {
            self.asm.jump(self.pass);
        }
        if rules[0].0 {
            self.asm.place(arp);
            self.arp(&v4);
        }
        if rules[1].0 {
            self.asm.place(ipv4);
            self.ipv4(&v4);
        }
        if rules[2].0 {
            self.asm.place(ipv6);
            self.ipv6(&v6, station && !v6.is_empty());
        }
    }

    fn addresses(&self) -> (Vec<[u8; 4]>, Vec<[u8; 16]>) {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in &self.filter.addresses {
            match address {
                IpAddr::V4(address) => v4.push(address.octets()),
                IpAddr::V6(address) => v6.push(address.octets()),
            }
        }
        (v4, v6)
    }

    /// Takes requests for, and whatever else is about, one of these addresses.
    fn arp(&mut self, addresses: &[[u8; 4]]) {
        self.need(i32::from(BODY) + 28);
        // Ethernet and IPv4, with addresses of six and four bytes.
        self.asm.load(Size::Word, R1, R5, BODY);
        self.asm.jump_if(R1, If::Differs, word([0, 1, 8, 0]), self.pass);
        self.asm.load(Size::Half, R1, R5, BODY + 4);
        self.asm.jump_if(R1, If::Differs, half(0x0604), self.pass);
        self.asm.load(Size::Word, R1, R5, BODY + 24);
        for address in addresses {
            self.asm.jump_if(R1, If::Equal, word(*address), self.take);
        }
        self.asm.jump(self.pass);
    }

    fn ipv4(&mut self, addresses: &[[u8; 4]]) {
        self.need(i32::from(BODY) + 20);
        self.asm.load(Size::Byte, R1, R5, BODY + 9);
        self.asm.jump_if(R1, If::Differs, PROTOCOL_UDP, self.pass);
        // More fragments to come, or not the first: the ports of all are in the first alone.
        self.asm.load(Size::Half, R1, R5, BODY + 6);
        self.asm.jump_if(R1, If::Common, half(0x3fff), self.pass);
        if !addresses.is_empty() {
            let ours = self.asm.label();
            self.asm.load(Size::Word, R1, R5, BODY + 16);
            for address in addresses {
                self.asm.jump_if(R1, If::Equal, word(*address), ours);
            }
            self.asm.jump(self.pass);
            self.asm.place(ours);
        }
        self.asm.load(Size::Byte, R0, R5, BODY);
        self.asm.and(R0, 0x0f);
        self.asm.shift_left(R0, 2);
        self.asm.jump_if(R0, If::Less, 20, self.pass);
        self.asm.add_register(R5, R0);
        self.need(i32::from(BODY) + 4);
        self.port(BODY + 2);
        self.asm.jump(self.pass);
    }

    fn ipv6(&mut self, addresses: &[[u8; 16]], solicitations: bool) {
        let other = self.asm.label();
        self.need(i32::from(BODY) + 40);
        self.asm.load(Size::Byte, R8, R5, BODY + 6);
        if !self.filter.udp_ports.is_empty() {
            self.asm.jump_if(R8, If::Differs, PROTOCOL_UDP, other);
            if !addresses.is_empty() {
                let ours = self.asm.label();
                self.one_of(addresses, BODY + 24, ours);
                self.asm.jump(self.pass);
                self.asm.place(ours);
            }
            self.need(i32::from(BODY) + 44);
            self.port(BODY + 42);
            self.asm.jump(self.pass);
        }
        self.asm.place(other);
        if solicitations {
            self.asm.jump_if(R8, If::Differs, PROTOCOL_ICMPV6, self.pass);
            self.need(i32::from(BODY) + 64);
            self.asm.load(Size::Byte, R1, R5, BODY + 40);
            self.asm.jump_if(R1, If::Differs, NEIGHBOUR_SOLICITATION, self.pass);
            self.one_of(addresses, BODY + 48, self.take);
        }
        self.asm.jump(self.pass);
    }

    /// Takes the frame if the port there is listed.
    fn port(&mut self, at: i16) {
        self.asm.load(Size::Half, R1, R5, at);
        for port in &self.filter.udp_ports {
            self.asm.jump_if(R1, If::Equal, half(*port), self.take);
        }
    }

    /// Jumps if the IPv6 address there is one of these.
    fn one_of(&mut self, addresses: &[[u8; 16]], at: i16, label: Label) {
        for address in addresses {
            let next = self.asm.label();
            let (words, _) = address.as_chunks::<4>();
            for (n, bytes) in words.iter().enumerate() {
                self.asm.load(Size::Word, R1, R5, at + 4 * n as i16);
                let last = n + 1 == words.len();
                let (condition, to) = if last { (If::Equal, label) } else { (If::Differs, next) };
                self.asm.jump_if(R1, condition, word(*bytes), to);
            }
            self.asm.place(next);
        }
    }

    fn end(&mut self, map: i32) {
        self.asm.place(self.pass);
        self.asm.set(R0, XDP_PASS);
        self.asm.exit();
        self.asm.place(self.take);
        self.asm.load(Size::Word, R2, R9, CONTEXT_QUEUE);
        self.asm.load_map(R1, map);
        // Without a socket for this queue the frame goes to the kernel.
        self.asm.set(R3, XDP_PASS);
        self.asm.call(REDIRECT_MAP);
        self.asm.exit();
    }
}

#[cfg(test)]
mod tests;
