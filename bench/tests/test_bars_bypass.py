"""The bars past the kernel's network stack, on made-up repetitions."""

import unittest

from suite import bars
from suite.bars_hosts import POLLED
from suite.cells import Cell
from suite.measure import Repetition

ROUNDS = 5
FANNED = "fan-out 1 KB to 4 fed over AF_XDP, sleeping"
FAN_BAR = "≥ 85% of a bare fan-out to as many sleeping readers"


def cell(key: str, experiment: str, waiting: str, variant: str = "", payload: int = 64, sinks: int = 1,
         placement: str = "veth") -> Cell:
    return Cell(experiment, key, key, "rust", "datagram", waiting, variant, payload, sinks, False, placement=placement)


def reps(what: Cell, main: float, lost: int = 0, **extra: object) -> list[Repetition]:
    rate = what.experiment in ("oneway", "fanout")
    values = {"msgs_per_s": main, "gbit_per_s": main} if rate else {"median_us": main, "p99_us": main, "p999_us": main}
    return [Repetition(what, n, values, 10_000, 0.2, 0.2, 50.0, lost, [0, 1], extra=dict(extra)) for n in range(ROUNDS)]


def judged(
    kept: list[Repetition], four_cores: bool = True, absent: dict[str, str] | None = None,
    failed: dict[Cell, str] | None = None,
) -> dict[tuple[str, str], tuple[str, str]]:
    """What and bar to verdict and words, of these bars alone."""
    marks = ("over AF_XDP", "over DPDK", "fed over", "pause of a stream")
    all_of_them = bars.Judge(kept, absent or {}, 1, four_cores, failed).all()
    mine = [v for v in all_of_them if any(mark in v.what for mark in marks)]
    found = {(v.what.removesuffix(", two hosts"), v.bar): (v.verdict, v.measured) for v in mine}
    assert len(found) == len(mine), "a bar is judged twice"
    return found


class RoundTrips(unittest.TestCase):
    def verdict(self, variant: str, bare: Cell, ours: float, what: str, bar: str) -> str:
        kept = reps(cell("insane", "rtt", "spin", variant), ours) + reps(bare, 4.0)
        kept += reps(cell("insane", "rtt", "spin", placement="local"), 0.4)
        return judged(kept)[what, bar][0]

    def test_a_microsecond_over_the_bare_technology(self) -> None:
        for variant, bare, name in (
            ("xdp", cell("af-xdp", "rtt", "spin"), "AF_XDP"),
            ("dpdk-af-packet", cell("dpdk", "rtt", "spin", "af-packet"), "DPDK over AF_PACKET"),
            ("dpdk-af-xdp", cell("dpdk", "rtt", "spin", "af-xdp"), "DPDK over AF_XDP"),
        ):
            what, bar = f"RTT 64 B over {name}, spinning", f"≤ bare {name} + 1 µs"
            self.assertEqual([self.verdict(variant, bare, ours, what, bar) for ours in (4.99, 5.01)], ["pass", "fail"])

    def test_over_memif_the_link_hops_are_allowed_for(self) -> None:
        # A hop is half of 0.4 µs: the limit is 4.0 + 0.8 + 0.6 µs.
        what, bar = "RTT 64 B over DPDK over memif, spinning", "≤ bare DPDK over memif + 4 link hops + 0.6 µs"
        bare = cell("dpdk", "rtt", "spin", "memif")
        self.assertEqual([self.verdict("dpdk-memif", bare, ours, what, bar) for ours in (5.39, 5.41)], ["pass", "fail"])

    def test_ends_that_poll_for_their_runtimes_are_judged_with_two_cores_too(self) -> None:
        bare, local = reps(cell("af-xdp", "rtt", "spin"), 4.0), reps(cell("insane", "rtt", "spin", placement="local"), 0.4)
        key = f"RTT 64 B over AF_XDP, {POLLED}", "≤ bare AF_XDP + 1 µs"
        for ours, verdict in ((4.99, "pass"), (5.01, "fail")):
            kept = reps(cell("insane", "rtt", "spin", "xdp-polled"), ours) + bare + local
            self.assertEqual(judged(kept, four_cores=False)[key][0], verdict)
        self.assertEqual(judged(bare + local)[key][0], "not measured")

    def test_with_two_cores_adaptive_ends_are_reported_and_spinning_ones_are_not_judged(self) -> None:
        kept = reps(cell("insane", "rtt", "adaptive", "xdp"), 50.0) + reps(cell("af-xdp", "rtt", "adaptive"), 5.0)
        found = judged(kept, four_cores=False)
        self.assertEqual(found["RTT 64 B over AF_XDP, adaptive", "reported"][0], "reported")
        self.assertIn("10 × [10–10] of bare AF_XDP", found["RTT 64 B over AF_XDP, adaptive", "reported"][1])
        verdict, why = found["RTT 64 B over AF_XDP, spinning", "≤ bare AF_XDP + 1 µs"]
        self.assertEqual(verdict, "not measured")
        self.assertIn("needs four cores", why)

    def test_what_could_not_be_measured_says_why(self) -> None:
        ours = cell("insane", "rtt", "adaptive", "xdp")
        found = judged(reps(cell("af-xdp", "rtt", "adaptive"), 5.0), failed={ours: "it went over udp"},
                       absent={"dpdk": "there is no DPDK"})
        verdict, why = found["RTT 64 B over AF_XDP, adaptive", "reported"]
        self.assertEqual(verdict, "not measured")
        self.assertIn("it went over udp", why)
        kept = reps(cell("insane", "rtt", "adaptive", "dpdk-memif"), 9.0)
        why = judged(kept, absent={"dpdk": "there is no DPDK"})["RTT 64 B over DPDK over memif, adaptive", "reported"][1]
        self.assertIn("there is no DPDK", why)


class Rates(unittest.TestCase):
    def found(self, ours: float, lost: int = 0, bare_lost: int = 0) -> str:
        kept = reps(cell("insane", "oneway", "spin", "xdp", 1024), ours, lost)
        kept += reps(cell("af-xdp", "oneway", "spin", "", 1024), 1e6, bare_lost)
        return judged(kept)["one-way 1 KB over AF_XDP, spinning", "≥ 85% of bare AF_XDP, loss ≤ 0.1%"][0]

    def test_a_share_of_the_bare_rate(self) -> None:
        self.assertEqual([self.found(rate) for rate in (0.86e6, 0.84e6)], ["pass", "fail"])

    def test_a_rate_with_loss_does_not_count(self) -> None:
        self.assertEqual([self.found(9e6, lost=11), self.found(9e6, lost=9)], ["fail", "pass"])
        self.assertEqual(self.found(9e6, bare_lost=11), "not measured")

    def test_over_memif_the_lower_of_the_bare_one_and_the_link(self) -> None:
        what, bar = "one-way 8 KB over DPDK over memif, spinning", ("≥ 70% of the lower of bare DPDK over memif and the "
                                                                    "local link, loss ≤ 0.1%")
        for bare, link in ((1e6, 9e6), (9e6, 1e6)):
            for ours, verdict in ((0.71e6, "pass"), (0.69e6, "fail")):
                kept = reps(cell("insane", "oneway", "spin", "dpdk-memif", 8192), ours)
                kept += reps(cell("dpdk", "oneway", "spin", "memif", 8192), bare)
                kept += reps(cell("insane", "oneway", "spin", "", 8192, placement="local"), link)
                self.assertEqual(judged(kept)[what, bar][0], verdict)


class FanOuts(unittest.TestCase):
    def found(self, ours: float, lost: int = 0) -> str:
        kept = reps(cell("insane", "fanout", "sleep", "xdp", 1024, 4), ours, lost)
        kept += reps(cell("floor", "fanout", "sleep", "", 1024, 4), 100.0)
        # That of one host has other cores.
        kept += reps(cell("floor", "fanout", "sleep", "", 1024, 4, "local"), 1.0)
        return judged(kept)[FANNED, FAN_BAR][0]

    def test_a_share_of_the_bare_one_on_the_same_cores(self) -> None:
        self.assertEqual([self.found(rate) for rate in (86, 84)], ["pass", "fail"])
        self.assertEqual(self.found(86, lost=11), "fail")


class Moves(unittest.TestCase):
    bars = ("median ≤ 1 ms", "p99 ≤ 20 ms")

    def found(self, moves_us: list[float], watched: bool = True) -> dict[tuple[str, str], tuple[str, str]]:
        middle = sorted(moves_us)[len(moves_us) // 2]
        return judged(reps(cell("insane", "rebind", "adaptive", payload=1024), middle, moves_us=moves_us,
                           still_us=[100.0], stalled=2, stalled_us=3000.0, watched=watched))

    def test_the_median_and_the_tail_of_all_moves(self) -> None:
        what = "pause of a stream that moves on request, best effort"
        for slowest, middle, verdicts in ((19_000.0, 900.0, ["pass", "pass"]), (21_000.0, 900.0, ["pass", "fail"]),
                                          (19_000.0, 1100.0, ["fail", "pass"])):
            found = self.found([middle] * 48 + [slowest] * 2)
            self.assertEqual([found[what, bar][0] for bar in self.bars], verdicts)
        # What the machine stalled is shown: of all five repetitions.
        self.assertIn("left out of 10 pauses, 15 ms in all", found[what, self.bars[0]][1])
        self.assertIn("0.1 ms without a move", found[what, self.bars[0]][1])

    def test_a_machine_that_cannot_be_watched_is_told(self) -> None:
        found = self.found([900.0] * 50, watched=False)
        self.assertTrue(any("stalls could not be seen" in words for _, words in found.values()))

    def test_moves_that_were_not_measured_say_so(self) -> None:
        found = self.found([900.0] * 50)
        what = "pause of a stream that moves on request, reliable"
        self.assertEqual(found[what, "median ≤ 1 ms, p99 ≤ 20 ms"][0], "not measured")


class Silence(unittest.TestCase):
    def test_a_run_without_any_of_it_says_nothing_of_it(self) -> None:
        self.assertEqual(judged(reps(cell("insane", "rtt", "spin", placement="local"), 0.4)), {})


if __name__ == "__main__":
    unittest.main()
