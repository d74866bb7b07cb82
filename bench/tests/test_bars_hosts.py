"""The bars between two hosts, on made-up repetitions."""

import unittest

from suite import bars, bars_hosts
from suite.cells import Cell
from suite.measure import Repetition

ROUNDS = 5


def cell(key: str, experiment: str, waiting: str, variant: str = "", payload: int = 64, placement: str = "veth") -> Cell:
    language = "python" if key.endswith("python") else "rust"
    system = key.removesuffix("-python")
    return Cell(experiment, key, system, language, "datagram", waiting, variant, payload, 1, False, placement=placement)


def reps(what: Cell, main: float, p999: float = 0.0, lost: int = 0) -> list[Repetition]:
    values = ({"msgs_per_s": main, "gbit_per_s": main} if what.experiment == "oneway" else
              {"median_us": main, "p99_us": main, "p999_us": p999 or main})
    return [Repetition(what, n, values, 10_000, 0.2, 0.2, 50.0, lost, [0, 1]) for n in range(ROUNDS)]


def verdicts(
    kept: list[Repetition], four_cores: bool = True, absent: dict[str, str] | None = None
) -> dict[tuple[str, str], str]:
    judged = bars.Judge(kept, absent or {}, 1, four_cores).all()
    found = {(v.what.removesuffix(", two hosts"), v.bar): v.verdict for v in judged if v.what.endswith(", two hosts")}
    assert len(found) == sum(v.what.endswith(", two hosts") for v in judged), "a bar is judged twice"
    return found


class Spinning(unittest.TestCase):
    what = "RTT 64 B, spinning"

    def judged(self, ours: float, four_cores: bool = True) -> dict[tuple[str, str], str]:
        kept = reps(cell("insane", "rtt", "spin"), ours, 2 * ours) + reps(cell("udp", "rtt", "spin"), 7.0, 10.0)
        kept += reps(cell("insane", "rtt", "spin", placement="local"), 0.4)
        kept += reps(cell("aeron", "rtt", "spin", "invoker"), 10.0)
        return verdicts(kept, four_cores)

    def test_the_sum_is_raw_and_four_hops_and_the_allowance(self) -> None:
        # A hop is half of 0.4 µs: the limit is 7.0 + 0.8 + 0.6 µs.
        bar = "≤ raw polled UDP + 4 link hops + 0.6 µs"
        self.assertEqual(self.judged(8.39)[self.what, bar], "pass")
        self.assertEqual(self.judged(8.41)[self.what, bar], "fail")

    def test_the_tail_and_the_peer(self) -> None:
        tail, peer = (self.what, "p99.9 ≤ 2 × raw polled UDP"), (self.what, "lower than Aeron UDP")
        self.assertEqual([self.judged(9.9)[bar] for bar in (tail, peer)], ["pass", "pass"])
        self.assertEqual([self.judged(10.1)[bar] for bar in (tail, peer)], ["fail", "fail"])

    def test_fewer_than_four_cores_are_no_measure(self) -> None:
        found = {key: verdict for key, verdict in self.judged(8.0, four_cores=False).items()
                 if "spinning" in key[0] and "poll" not in key[0]}
        self.assertEqual(len(found), 4)
        self.assertEqual(set(found.values()), {"not measured"})

    def test_ends_that_poll_for_their_runtimes_are_judged_with_two_cores_too(self) -> None:
        what, bar = f"RTT 64 B, {bars_hosts.POLLED}", "≤ raw polled UDP + 4 link hops + 0.6 µs"
        for ours, verdict in ((8.39, "pass"), (8.41, "fail")):
            kept = reps(cell("insane", "rtt", "spin", "polled"), ours) + reps(cell("udp", "rtt", "spin"), 7.0, 10.0)
            kept += reps(cell("insane", "rtt", "spin", placement="local"), 0.4)
            self.assertEqual(verdicts(kept, four_cores=False)[what, bar], verdict)
        self.assertEqual(self.judged(8.0)[what, bar], "not measured")


class Sleeping(unittest.TestCase):
    def test_four_more_wake_ups_are_allowed_for_and_a_tenth(self) -> None:
        # (70 + 90 - 40) × 1.1 = 132 µs.
        bar = "≤ raw blocking UDP + (a bare chain of six wake-ups − one of two) + 10 %"
        for ours, verdict in ((131.0, "pass"), (133.0, "fail")):
            kept = reps(cell("insane", "rtt", "sleep"), ours) + reps(cell("udp", "rtt", "sleep"), 70.0)
            for chain, median in (("chain-6", 90.0), ("chain-2", 40.0)):
                kept += reps(cell("floor", "rtt", "sleep", chain), median)
            self.assertEqual(verdicts(kept)["RTT 64 B, sleeping", bar], verdict)
            # Ends with the runtime in them are held to the same.
            kept += reps(cell("insane", "rtt", "sleep", "polled"), 132.5)
            found = verdicts(kept)
            self.assertEqual(found["RTT 64 B, sleeping", bar], verdict)
            self.assertEqual(found[f"RTT 64 B, sleeping, {bars_hosts.OWN_LOOP}", bar], "fail")


class Adaptive(unittest.TestCase):
    def test_a_quarter_and_a_fifth(self) -> None:
        kept = reps(cell("insane", "rtt", "adaptive"), 24.0, 90.0)
        kept += reps(cell("zeromq", "rtt", "sleep"), 100.0, 500.0) + reps(cell("zenoh", "rtt", "sleep"), 90.0, 400.0)
        beside = "RTT 64 B, adaptive"
        expected = {
            (beside, "median ≤ 1/4 of zeromq's"): "pass", (beside, "p99.9 ≤ 1/5 of zeromq's"): "pass",
            (beside, "median ≤ 1/4 of zenoh's"): "fail", (beside, "p99.9 ≤ 1/5 of zenoh's"): "fail"}
        self.assertEqual({key: verdict for key, verdict in verdicts(kept).items() if key[0].startswith(beside)}, expected)
        # A runtime in each end is a row of its own.
        kept += reps(cell("insane", "rtt", "adaptive", "polled"), 22.0, 79.0)
        within = f"{beside}, {bars_hosts.OWN_LOOP}"
        expected |= {(within, bar): "pass" for _, bar in expected}
        self.assertEqual({key: verdict for key, verdict in verdicts(kept).items() if key[0].startswith(beside)}, expected)


class Relays(unittest.TestCase):
    def test_who_is_measured_stands_beside_them(self) -> None:
        kept = reps(cell("floor", "rtt", "adaptive", "relay"), 20.0) + reps(cell("insane", "rtt", "adaptive"), 30.0)
        kept += reps(cell("zeromq", "rtt", "sleep"), 80.0)
        kept += reps(cell("floor", "oneway", "adaptive", "relay-gso", 1024), 2e6)
        kept += reps(cell("insane", "oneway", "adaptive", payload=1024), 1e6)
        kept += reps(cell("insane", "oneway", "adaptive", "reliable", 1024), 9e6)
        judged = bars.Judge(kept, {}, 1, False).all()
        found = {(v.what, v.bar): (v.measured, v.verdict) for v in judged if "relay" in v.bar}
        self.assertEqual(found, {
            ("RTT 64 B, adaptive, two hosts", "insane beside a bare relay"): ("1.5 × [1.5–1.5] of it", "reported"),
            ("RTT 64 B, adaptive, two hosts", "zeromq beside a bare relay"): ("4 × [4–4] of it", "reported"),
            ("one-way 1024 B, adaptive, two hosts", "insane beside a bare relay"): ("0.5 × [0.5–0.5] of it", "reported")})


class Rates(unittest.TestCase):
    def kept(self, ours: float, lost: int = 0, gso_lost: int = 0) -> list[Repetition]:
        kept = reps(cell("insane", "oneway", "adaptive", payload=1024), ours, lost=lost)
        kept += reps(cell("udp", "oneway", "sleep", "gso", 1024), 8e6, lost=gso_lost)
        kept += reps(cell("udp", "oneway", "sleep", "", 1024), 99e6)
        for peer, rate in (("zeromq", 0.8e6), ("zenoh", 1e6)):
            kept += reps(cell(peer, "oneway", "sleep", payload=1024), rate)
        return kept

    what, peers, raw = "one-way 1 KB, adaptive", "≥ 3 × the best peer", "≥ 0.35 × raw UDP gso"

    def test_the_best_of_the_peers_and_raw_runs(self) -> None:
        found = verdicts(self.kept(3.1e6))
        self.assertEqual((found[self.what, self.peers], found[self.what, self.raw]), ("pass", "pass"))
        found = verdicts(self.kept(2.7e6))
        self.assertEqual((found[self.what, self.peers], found[self.what, self.raw]), ("fail", "fail"))

    def test_a_rate_with_loss_does_not_count(self) -> None:
        self.assertEqual(verdicts(self.kept(9e6, lost=11))[self.what, self.peers], "fail")
        self.assertEqual(verdicts(self.kept(9e6, lost=9))[self.what, self.peers], "pass")
        self.assertEqual(verdicts(self.kept(9e6, gso_lost=11))[self.what, self.raw], "not measured")
        self.assertAlmostEqual(bars_hosts.loss(reps(cell("udp", "oneway", "sleep"), 1.0, lost=10_000)), 0.5)


class Others(unittest.TestCase):
    def test_the_python_peers_that_are_there(self) -> None:
        kept = reps(cell("insane-python", "rtt", "adaptive"), 60.0) + reps(cell("zeromq-python", "rtt", "sleep"), 115.0)
        found = verdicts(kept, absent={"pynng": "why it is not"})
        what = "Python RTT 64 B, adaptive"
        self.assertEqual(found[what, "lower than zeromq-python"], "pass")
        self.assertEqual(found[what, "lower than pynng"], "not measured")

    def test_each_python_peer_has_a_verdict_of_its_own(self) -> None:
        kept = reps(cell("insane-python", "rtt", "adaptive"), 60.0)
        for key, figure in (("zeromq-python", 115.0), ("pynng", 90.0), ("zenoh-python", 50.0), ("nats-python", 60.0)):
            kept += reps(cell(key, "rtt", "sleep"), figure)
        found = verdicts(kept)
        what = "Python RTT 64 B, adaptive"
        self.assertEqual({peer: found[what, f"lower than {peer}"] for peer in bars_hosts.PYTHON_PEERS},
                         {"zeromq-python": "pass", "pynng": "pass", "zenoh-python": "fail", "nats-python": "tie"})

    def test_one_host_alone_says_nothing_of_two_and_two_nothing_of_one(self) -> None:
        self.assertEqual(verdicts(reps(cell("insane", "rtt", "spin", placement="local"), 0.4)), {})
        judged = bars.Judge(reps(cell("insane", "rtt", "spin"), 0.1), {}, 1).all()
        alone = [v for v in judged if not v.what.endswith(", two hosts")]
        self.assertEqual({v.verdict for v in alone}, {"not measured"})


if __name__ == "__main__":
    unittest.main()
