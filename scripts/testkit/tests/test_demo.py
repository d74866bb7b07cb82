"""What is wrong with the demo's report is found."""

import copy
import unittest
from typing import Any

from testkit import demo


def _account(name: str, **ends: int) -> dict[str, Any]:
    return {"name": name, "intended": sum(ends.values()), "ends": ends, "seen": ends["delivered"]}


_FAULT = {"local": {"unanswered": 0, "again_after_ms": 1.0}, "remote": {"unanswered": 9, "again_after_ms": 3.0}}
_LOOP = {"answered": 90, "unanswered": 10, "twice": 0, "running_at_the_end": True}
_GOOD: dict[str, Any] = {
    "hosts": "namespaces",
    "accounting": {
        "emitted": 100,
        "out_of_view": 4,
        "sinks": [
            _account("local xApp", delivered=100),
            _account("remote xApp", delivered=90, dropped=5, unconfirmed=1),
        ],
    },
    "pids": {"dApp": [1, 1], "local xApp": [2, 2], "remote xApp": [3, 3]},
    "latency": {f"{path} {who}": {"count": 5} for path in ("insane", "udp", "zeromq") for who in ("local", "remote")},
    "runs": {"insane": {"faults": {"cut": _FAULT, "kill": _FAULT}, "loops": {"local": _LOOP, "remote": _LOOP}}},
}


def _with(value: object, *path: str | int) -> dict[str, Any]:
    report = copy.deepcopy(_GOOD)
    place: Any = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return report


class Reports(unittest.TestCase):
    def test_a_good_one_has_no_faults(self) -> None:
        self.assertEqual(demo.faults_of_two_hosts(_GOOD, ["cut", "kill"]), [])

    def test_what_the_sink_took_in_the_last_moment_may_be_unconfirmed(self) -> None:
        report = _with(91, "accounting", "sinks", 1, "seen")
        self.assertEqual(demo.faults_of_two_hosts(report, ["cut", "kill"]), [])

    def test_each_fault_is_found(self) -> None:
        insane = ("runs", "insane")
        bad = [
            _with(99, "accounting", "sinks", 0, "intended"),
            _with(92, "accounting", "sinks", 1, "seen"),
            _with(3, "accounting", "out_of_view"),
            _with(None, *insane, "faults", "cut", "remote", "again_after_ms"),
            _with(0, *insane, "faults", "kill", "remote", "unanswered"),
            _with(False, *insane, "loops", "local", "running_at_the_end"),
            _with(1, *insane, "loops", "remote", "twice"),
            _with({"kill": _FAULT}, *insane, "faults"),
            _with([3, 4], "pids", "remote xApp"),
            _with({"dApp": [1, 1]}, "pids"),
            _with(0, "latency", "zeromq remote", "count"),
        ]
        for report in bad:
            self.assertNotEqual(demo.faults_of_two_hosts(report, ["cut", "kill"]), [])
