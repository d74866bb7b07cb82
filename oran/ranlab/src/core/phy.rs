//! Transport block sizes of TS 38.214 §5.1.3.2, and the modulation and coding schemes of its tables 5.1.3.1-1 and -2.

/// Which table of modulation and coding schemes is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum McsTable {
    /// Table 5.1.3.1-1: up to 64QAM, indices 0 to 28.
    #[serde(rename = "64qam")]
    Qam64,
    /// Table 5.1.3.1-2: up to 256QAM, indices 0 to 27.
    #[default]
    #[serde(rename = "256qam")]
    Qam256,
}

/// Bits per symbol, and 2048 times the code rate (table 2 has halves of a 1024th).
type Scheme = (u32, u32);

const fn schemes<const N: usize>(of_order: &[(u32, &[u32])]) -> [Scheme; N] {
    let mut all = [(0, 0); N];
    let (mut n, mut order) = (0, 0);
    while order < of_order.len() {
        let (bits, rates) = of_order[order];
        let mut i = 0;
        while i < rates.len() {
            all[n] = (bits, rates[i]);
            n += 1;
            i += 1;
        }
        order += 1;
    }
    assert!(n == N, "as many schemes as the table has");
    all
}

const QAM64: [Scheme; 29] = schemes(&[
    (2, &[240, 314, 386, 502, 616, 758, 898, 1052, 1204, 1358]),
    (4, &[680, 756, 868, 980, 1106, 1232, 1316]),
    (6, &[876, 932, 1034, 1134, 1232, 1332, 1438, 1544, 1644, 1746, 1820, 1896]),
]);

const QAM256: [Scheme; 28] = schemes(&[
    (2, &[240, 386, 616, 898, 1204]),
    (4, &[756, 868, 980, 1106, 1232, 1316]),
    (6, &[932, 1034, 1134, 1232, 1332, 1438, 1544, 1644, 1746]),
    (8, &[1365, 1422, 1508, 1594, 1682, 1770, 1833, 1896]),
]);

/// Table 5.1.3.2-1: the sizes up to 3824 bits.
const SMALL: [u32; 93] = [
    24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 152, 160, 168, 176, 184, 192, 208, 224, 240,
    256, 272, 288, 304, 320, 336, 352, 368, 384, 408, 432, 456, 480, 504, 528, 552, 576, 608, 640, 672, 704, 736, 768,
    808, 848, 888, 928, 984, 1032, 1064, 1128, 1160, 1192, 1224, 1256, 1288, 1320, 1352, 1416, 1480, 1544, 1608, 1672,
    1736, 1800, 1864, 1928, 2024, 2088, 2152, 2216, 2280, 2408, 2472, 2536, 2600, 2664, 2728, 2792, 2856, 2976, 3104,
    3240, 3368, 3496, 3624, 3752, 3824,
];

impl McsTable {
    const fn all(self) -> &'static [Scheme] {
        match self {
            Self::Qam64 => &QAM64,
            Self::Qam256 => &QAM256,
        }
    }

    /// The highest index of the table.
    #[must_use]
    pub const fn last(self) -> u8 {
        match self {
            Self::Qam64 => 28,
            Self::Qam256 => 27,
        }
    }

    /// Bits per symbol and code rate of an index.
    #[must_use]
    pub fn scheme(self, index: u8) -> Option<(u32, f64)> {
        self.all().get(usize::from(index)).map(|&(bits, rate)| (bits, f64::from(rate) / 2048.0))
    }
}

/// What a physical resource block carries besides data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// OFDM symbols of the slot that carry data or reference signals (1 to 14).
    pub symbols: u32,
    /// Resource elements of reference signals per resource block.
    pub dmrs: u32,
    /// Resource elements of other overhead per resource block: 0, 6, 12 or 18.
    pub overhead: u32,
    /// Layers, 1 to 4.
    pub layers: u32,
}

impl Allocation {
    /// The size in bytes of the transport block on `prbs` resource blocks; 0 if nothing fits or the index is not in the
    /// table.
    #[must_use]
    pub fn bytes(&self, table: McsTable, mcs: u8, prbs: u32) -> u32 {
        let Some(&(bits, rate)) = table.all().get(usize::from(mcs)) else { return 0 };
        let per_prb = (12 * self.symbols).saturating_sub(self.dmrs + self.overhead).min(156);
        // Exact in integers: N_info in 2048ths of a bit.
        let info = u64::from(per_prb * prbs) * u64::from(rate * bits * self.layers);
        if info == 0 {
            return 0;
        }
        transport_block(info, rate) / 8
    }
}

/// From N_info, in 2048ths of a bit, to the size in bits. `rate` is the code rate in 2048ths.
fn transport_block(info: u64, rate: u32) -> u32 {
    const ONE: u64 = 2048;
    if info <= 3824 * ONE {
        let n = (info / ONE).checked_ilog2().unwrap_or(0).saturating_sub(6).max(3);
        let quantised = 24.max(((info / ONE) >> n) << n) as u32;
        return SMALL.iter().copied().find(|&size| size >= quantised).unwrap_or(3824);
    }
    let above = info - 24 * ONE;
    let n = (above / ONE).ilog2() - 5;
    // Rounded to the nearest, ties up.
    let steps = (above + (ONE << n) / 2) / (ONE << n);
    let with_crc = 3840.max(steps << n) + 24;
    let blocks = if rate <= 512 {
        with_crc.div_ceil(3816)
    } else if with_crc > 8424 + 24 {
        with_crc.div_ceil(8424)
    } else {
        1
    };
    (8 * blocks * with_crc.div_ceil(8 * blocks) - 24) as u32
}

/// The sizes for every index and every number of resource blocks of a carrier, computed once.
#[derive(Clone, Debug)]
pub struct Sizes {
    prbs: usize,
    bytes: Vec<u32>,
}

impl Sizes {
    /// The sizes on a carrier of `prbs` resource blocks.
    #[must_use]
    pub fn new(allocation: Allocation, table: McsTable, prbs: u16) -> Self {
        let per_index = |mcs| (0..=u32::from(prbs)).map(move |n| allocation.bytes(table, mcs, n));
        Self { prbs: usize::from(prbs) + 1, bytes: (0..=table.last()).flat_map(per_index).collect() }
    }

    /// The size in bytes on so many resource blocks.
    #[must_use]
    pub fn bytes(&self, mcs: u8, prbs: u16) -> u32 {
        self.row(mcs).get(usize::from(prbs)).copied().unwrap_or(0)
    }

    /// The fewest resource blocks on which `bytes` fit, or all there are.
    #[must_use]
    pub fn needed(&self, mcs: u8, bytes: u64) -> u16 {
        let row = self.row(mcs);
        let at = row.partition_point(|&size| u64::from(size) < bytes);
        u16::try_from(at.min(row.len().saturating_sub(1))).unwrap_or(u16::MAX)
    }

    fn row(&self, mcs: u8) -> &[u32] {
        let from = usize::from(mcs) * self.prbs;
        self.bytes.get(from..from + self.prbs).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Allocation = Allocation { symbols: 13, dmrs: 12, overhead: 0, layers: 1 };

    #[test]
    fn sizes_of_a_full_slot_are_the_known_ones() {
        let of = |table, from, to| (from..=to).map(|mcs| SLOT.bytes(table, mcs, 106)).collect::<Vec<_>>();
        assert_eq!(
            of(McsTable::Qam256, 6, 18),
            [3201, 3649, 4097, 4612, 4867, 5252, 5763, 6273, 6913, 7429, 8069, 8709, 9222]
        );
        assert_eq!([10, 18, 28].map(|mcs| SLOT.bytes(McsTable::Qam64, mcs, 106)), [2562, 5252, 10_497]);
    }

    /// Written from the formula in floating point, as the standard prints it.
    fn formula(bits: u32, rate: f64, per_prb: u32, prbs: u32, layers: u32) -> u32 {
        let info = f64::from(per_prb.min(156) * prbs) * rate * f64::from(bits * layers);
        if info <= 3824.0 {
            let n = (info.log2().floor() - 6.0).max(3.0);
            let quantised = (2f64.powf(n) * (info / 2f64.powf(n)).floor()).max(24.0);
            return SMALL.into_iter().find(|&s| f64::from(s) >= quantised).unwrap();
        }
        let n = (info - 24.0).log2().floor() - 5.0;
        let quantised = (2f64.powf(n) * ((info - 24.0) / 2f64.powf(n) + 0.5).floor()).max(3840.0);
        let blocks = if rate <= 0.25 {
            ((quantised + 24.0) / 3816.0).ceil()
        } else if quantised > 8424.0 {
            ((quantised + 24.0) / 8424.0).ceil()
        } else {
            1.0
        };
        (8.0 * blocks * ((quantised + 24.0) / (8.0 * blocks)).ceil() - 24.0) as u32
    }

    #[test]
    fn integers_give_what_the_formula_gives_everywhere() {
        for table in [McsTable::Qam64, McsTable::Qam256] {
            for mcs in 0..=table.last() {
                let (bits, rate) = table.scheme(mcs).unwrap();
                for (symbols, dmrs, layers) in [(13, 12, 1), (6, 12, 1), (14, 18, 4), (2, 6, 2)] {
                    let allocation = Allocation { symbols, dmrs, overhead: 0, layers };
                    for prbs in 1..=273 {
                        let expected = formula(bits, rate, 12 * symbols - dmrs, prbs, layers) / 8;
                        let what = format!("{table:?} {mcs} {prbs} {allocation:?}");
                        assert_eq!(allocation.bytes(table, mcs, prbs), expected, "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn tables_grow_with_the_index_and_every_size_is_whole_bytes() {
        for table in [McsTable::Qam64, McsTable::Qam256] {
            let efficiency: Vec<f64> = (0..=table.last())
                .map(|i| table.scheme(i).map(|(bits, rate)| f64::from(bits) * rate).unwrap())
                .collect();
            // At the change from 16QAM to 64QAM the 64QAM table goes down by a hair, as the standard has it.
            assert!(efficiency.windows(2).all(|pair| pair[1] > pair[0] - 0.01), "{table:?}");
        }
        assert!(SMALL.iter().all(|size| size % 8 == 0) && SMALL.is_sorted());
        assert_eq!(McsTable::Qam256.scheme(28), None);
        assert_eq!(SLOT.bytes(McsTable::Qam256, 28, 106), 0);
        assert_eq!(SLOT.bytes(McsTable::Qam256, 10, 0), 0);
    }

    #[test]
    fn needed_is_the_smallest_that_fits() {
        let sizes = Sizes::new(SLOT, McsTable::Qam256, 106);
        for mcs in 0..=27 {
            for bytes in [1, 3, 100, 1500, 1501, 4000] {
                let n = sizes.needed(mcs, bytes);
                assert!(u64::from(sizes.bytes(mcs, n)) >= bytes || n == 106);
                assert!(n == 0 || u64::from(sizes.bytes(mcs, n - 1)) < bytes, "{mcs} {bytes}");
            }
        }
        assert_eq!(sizes.needed(10, 1 << 40), 106);
        assert_eq!(sizes.needed(10, 0), 0);
    }
}
