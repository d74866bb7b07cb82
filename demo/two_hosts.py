"""The second act: the loop over two hosts, one xApp on each; the link is cut, a runtime is killed; beside UDP and ZeroMQ."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import accounting
from common import OUT, Apps, Failed, Run, cdf, draw_cdf, follow, pyplot, summary
from hosts import Host, Hosts
from loops import LATE_S, Answers, Fault, running_at_the_end

CUT_S, DEAD_S, LIMIT_S = 1.5, 0.5, 60.0
"""How long the link is cut, how long the killed runtime stays dead, what a part may take beyond what it is told to."""
WHO = ("local", "remote")


class Dapp(threading.Thread):
    """Follows a dApp; its loop's start, the live table, and its last line."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float, *, live: bool) -> None:
        super().__init__(daemon=True)
        self.process, self.limit_s, self.live = process, limit_s, live
        self._begun = threading.Event()
        self._start: float | None = None
        self._result: Run | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """The thread."""
        try:
            self._result = follow(self.process, self._line, self.limit_s)
        except BaseException as error:
            self._error = error
        self._begun.set()

    def _line(self, line: Run) -> None:
        if "start_s" in line:
            self._start = line["start_s"]
            self._begun.set()
        elif self.live:
            local, remote = line["answered"]
            emitted = line["emitted"]
            row = f"{line['at_s']:5.0f}s {emitted:9} {local:9} {emitted - local:11} {remote:12} {emitted - remote:11}"
            print(row, flush=True)

    def note(self, what: str) -> float:
        """Tells what was just done to the loop; returns the loop's time."""
        now = self.now()
        if self.live:
            print(f"{now:6.1f}s   {what}", flush=True)
        return now

    def until(self, second: float) -> float:
        """Sleeps until a second of the loop; returns the loop's time then."""
        self._begun.wait()
        if self._start is not None:
            time.sleep(max(0.0, self._start + second - time.monotonic()))
        if self._error:
            raise self._error
        return self.now()

    def now(self) -> float:
        """The loop's time."""
        assert self._start is not None
        return time.monotonic() - self._start

    def last(self) -> Run:
        """Waits for its end, and returns its last line."""
        self.join()
        if self._error:
            raise self._error
        assert self._result is not None
        return self._result


def status(apps: Apps, host: Host) -> Run:
    """A runtime's report."""
    command = [*host.within, str(apps.target / "insane"), "status", "--ended", "--json"]
    environment = {"INSANE_SOCKET": str(host.socket), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise Failed(f"insane status of the {host.name}: {done.stderr.strip() or done.stdout.strip()}")
    return dict(json.loads(done.stdout))


def settled(apps: Apps, host: Host, source: str, sinks: list[str]) -> Run:
    """A runtime's report once every message of a source is in a count, or after some seconds as it is."""
    for _ in range(100):
        report = status(apps, host)
        if all(accounting.holds(accounting.counted(report, source, sink)) for sink in sinks):
            break
        time.sleep(0.05)
    return report


def over_insane(apps: Apps, hosts: Hosts, calm: float) -> Run:
    """The loop over INSANE, with everything that is done to it."""
    ran, ric = hosts.ran, hosts.ric
    files = {host.name: host.configuration(other) for host, other in ((ran, ric), (ric, ran))}
    runtimes = {h.name: apps.runtime("--config", files[h.name], socket=h.socket, within=h.within) for h in (ran, ric)}
    started = [
        apps.xapp("--instance", str(instance), socket=host.socket, within=host.within)
        for instance, host in enumerate((ran, ric))
    ]
    cut = CUT_S if hosts.kind == "namespaces" else 0.0
    seconds = calm + (cut + calm if cut else 0.0) + DEAD_S + calm
    dapp = apps.start(
        apps.target / "insane-demo-dapp", "--seconds", str(seconds), "--sinks", "2", "--xapps", "2",
        socket=ran.socket, within=ran.within,
    )  # fmt: skip
    print(f"{'':26} local xApp (RAN)        remote xApp (RIC)")
    print(f"{'time':>6} {'emitted':>9} {'answered':>9} {'unanswered':>11} {'answered':>12} {'unanswered':>11}")
    loop = Dapp(dapp, seconds + LIMIT_S, live=True)
    faults: list[Fault] = []
    loop.until(calm)
    reports = [status(apps, ran)]
    if cut:
        faults.append(cut_link(hosts, loop))
        loop.until(faults[-1].over + calm)
        reports.append(status(apps, ran))
    runtimes["RIC"].kill()
    runtimes["RIC"].wait()
    killed = loop.note("the RIC's runtime is killed")
    loop.until(killed + DEAD_S)
    again = loop.note("and started again")
    apps.runtime("--config", files["RIC"], socket=ric.socket, within=ric.within)
    served = loop.now()
    faults.append(Fault("kill", killed, again))
    run = loop.last()
    last = [apps.finish(process) for process, _ in started]
    source, sinks = run["accounting"]["source"], [ready["sink"] for _, ready in started]
    reports.append(settled(apps, ran, source, sinks))
    pids = {"dApp": [dapp.pid, run["pid"]]} | {
        f"{who} xApp": [ready["pid"], final["pid"]] for who, (_, ready), final in zip(WHO, started, last, strict=True)
    }
    kinds = [[accounting.counted(report, source, sink) for sink in sinks] for report in reports]
    return run | {
        "faults": faults, "served_after_ms": round((served - again) * 1e3, 1), "pids": pids,
        "seen_by_apps": last, "sinks": sinks, "counts": kinds,
    }  # fmt: skip


def cut_link(hosts: Hosts, loop: Dapp) -> Fault:
    """Takes the cable down for a while."""
    begin = loop.now()
    hosts.cut()
    loop.note("the link is cut")
    loop.until(begin + CUT_S)
    hosts.mend()
    return Fault("cut", begin, loop.note("and mended"))


def over_others(apps: Apps, hosts: Hosts, path: str, calm: float) -> Run:
    """The same loop over `udp` or `zeromq`, the link cut in the middle where there is one."""
    both = (hosts.ran, hosts.ric)
    started = [
        apps.xapp("--path", path, "--instance", str(instance), "--address", host.address, within=host.within)
        for instance, host in enumerate(both)
    ]
    where: list[str] = []
    for host, (_, ready) in zip(both, started, strict=True):
        where += ["--peer", f"{host.address}:{ready['port']}"]
        where += ["--back", f"{host.address}:{ready['back']}"] if path == "zeromq" else []
    cut = hosts.kind == "namespaces"
    seconds = calm + (CUT_S + calm if cut else 0.0)
    dapp = apps.start(
        apps.target / "insane-demo-dapp", "--path", path, "--seconds", str(seconds), "--xapps", "2",
        "--address", hosts.ran.address, *where, within=hosts.ran.within,
    )  # fmt: skip
    loop = Dapp(dapp, seconds + LIMIT_S, live=False)
    loop.until(calm)
    faults = [cut_link(hosts, loop)] if cut else []
    run = loop.last()
    return run | {"faults": faults, "seen_by_apps": [apps.finish(process) for process, _ in started]}


def accounts_of(run: Run) -> list[Run]:
    """The last counts for each xApp, with what it saw itself."""
    return [
        {"name": f"{who} xApp", "sink": sink, "seen": app["seen"], "sent": app["sent"], **counts}
        for who, sink, app, counts in zip(WHO, run["sinks"], run["seen_by_apps"], run["counts"][-1], strict=True)
    ]


def costs(path: str, run: Run) -> Run:
    """What each fault cost each xApp's loop; over INSANE also what was counted between the reports before and after it."""
    told: Run = {}
    for k, fault in enumerate(run["faults"]):
        told[fault.name] = {"begin_s": round(fault.begin, 3), "over_s": round(fault.over, 3)}
        for instance, who in enumerate(WHO):
            answers = Answers.of(run, instance)
            cost = fault.cost(answers)
            if path == "insane":
                before, after = (run["counts"][k + i][instance]["ends"] for i in (0, 1))
                grown = {name: n - before.get(name, 0) for name, n in after.items() if name != "delivered"}
                cost["counted"] = {name: n for name, n in grown.items() if n}
            told[fault.name][who] = cost
    if path == "insane":
        told["kill"]["served_after_ms"] = run["served_after_ms"]
    return told


def tell(path: str, told: Run, paths: dict[str, str]) -> None:
    """Prints what a fault cost."""
    for name, fault in told.items():
        span = fault["over_s"] - fault["begin_s"]
        what = f"the link cut for {span:.1f} s" if name == "cut" else f"RIC's runtime killed, and started after {span:.1f} s"
        print(f"  {paths[path]}, {what}")
        for who in WHO:
            cost = fault[who]
            after, gap = cost["again_after_ms"], cost["longest_gap_ms"]
            again = "did not run again" if after is None else f"ran again after {after:.1f} ms"
            gap = "no gap" if gap is None else f"longest gap {gap:.1f} ms"
            counted = ", ".join(f"{n} {kind}" for kind, n in cost.get("counted", {}).items())
            counted = f" (counted: {counted})" if counted else ""
            print(
                f"    {who + ' loop':<12} {cost['unanswered']:5} unanswered{counted}, {cost['late']} later than "
                f"{LATE_S * 1e3:.0f} ms, {gap}, {again}"
            )


def plot(runs: dict[str, Run], times: dict[str, list[float]], paths: dict[str, str]) -> str | None:
    """Draws the distributions, and how many answers of the remote xApp came while the loop was cut."""
    plots = pyplot()
    if plots is None:
        return None
    figure, (left, right) = plots.subplots(1, 2, figsize=(12, 4))
    draw_cdf(left, times)
    for path, run in runs.items():
        came = Answers.of(run, 1).arrivals()
        buckets = [0] * (int(run["sent_us"][-1] / 1e5) + 2)
        for at in came:
            buckets[min(int(at * 10), len(buckets) - 1)] += 1
        # The last is not whole.
        right.step([i / 10 for i in range(len(buckets) - 1)], buckets[:-1], where="post", label=paths[path])
    for fault in runs["insane"]["faults"]:
        label, color = ("link cut", "tab:red") if fault.name == "cut" else ("runtime killed (INSANE)", "tab:gray")
        right.axvspan(fault.begin, fault.over, alpha=0.15, color=color, label=label)
    right.set(xlabel="seconds", ylabel="answers of the remote xApp in 100 ms", ylim=(0, None))
    right.grid(alpha=0.3)
    right.legend()
    figure.tight_layout()
    figure.savefig(OUT / "two-hosts.png", dpi=120)
    return "out/demo/two-hosts.png"


def play(apps: Apps, kind: str, seconds: float, without_zeromq: str | None) -> Run:
    """Plays the act; returns its part of the report."""
    directory = Path(apps.directory) / "two"
    directory.mkdir()
    calm = max(2.5, seconds * 0.25)
    paths = {"insane": "INSANE", "udp": "UDP sockets", "zeromq": "ZeroMQ"}
    runs: dict[str, Run] = {}
    with Hosts(directory, kind) as hosts:
        try:
            if hosts.kind == "namespaces":
                print("\ndemo: the same on two hosts, RAN and RIC: network namespaces with a cable between them")
            else:
                print(f"\ndemo: the same on two hosts, RAN and RIC: two loopback addresses ({hosts.why_not})")
                print("demo: there is no cable to be cut then")
            print("demo: the dApp is on the RAN, and an xApp in Python on each, which answers; the link is cut in")
            print("demo: the middle, then the RIC's runtime is killed and started again; no application is\n")
            runs["insane"] = over_insane(apps, hosts, calm)
            for path in ("udp", "zeromq"):
                if path == "zeromq" and without_zeromq:
                    print(f"demo: not over ZeroMQ: {without_zeromq}")
                    continue
                print(f"demo: the same loop over {paths[path]}, the same cut")
                runs[path] = over_others(apps, hosts, path, calm)
        finally:
            # Before the namespaces go.
            apps.end()
    return tell_all(runs, paths, hosts)


def tell_all(runs: dict[str, Run], paths: dict[str, str], hosts: Hosts) -> Run:
    """Prints what came out; returns the act's part of the report."""
    times = {}
    for path, run in runs.items():
        for instance, who in enumerate(WHO):
            answers = Answers.of(run, instance)
            spans = [fault.span(Answers.of(run, 1)) for fault in run["faults"]]
            times[f"{path} {who}"] = answers.outside(spans)
    if not all(times.values()):
        raise Failed("a path gave no answers over two hosts")
    cdf(times)
    print("\nwhat the faults cost")
    cost = {path: costs(path, run) for path, run in runs.items()}
    for path in runs:
        tell(path, cost[path], paths)
    insane = runs["insane"]
    accounts = accounts_of(insane)
    emitted, out_of_view = insane["warm_up"] + insane["emitted"], len(insane["accounting"]["out_of_view"])
    print(f"\naccounting of {emitted} indications, per sink: the dApp's count, INSANE's counts, the xApp's count")
    for account in accounts:
        print(accounting.line(account, emitted))
    disagreements = accounting.disagreements(accounts, emitted, out_of_view)
    print("  they agree" if not disagreements else "  THEY DO NOT AGREE")
    kept = {
        path: {k: v for k, v in run.items() if k not in ("xapps", "sent_us", "faults", "counts", "accounting")}
        | {
            "faults": cost[path],
            "loops": {
                who: {k: run["xapps"][i][k] for k in ("answered", "unanswered", "twice")}
                | {"running_at_the_end": running_at_the_end(Answers.of(run, i))}
                for i, who in enumerate(WHO)
            },
        }
        for path, run in runs.items()
    }
    return {
        "hosts": hosts.kind,
        "why_not_namespaces": hosts.why_not,
        "latency": {name: summary(values) for name, values in times.items()},
        "accounting": {
            "emitted": emitted, "out_of_view": out_of_view, "sinks": accounts, "disagreements": disagreements,
        },
        "pids": insane["pids"],
        "runs": kept,
        "plot": plot(runs, times, paths),
    }  # fmt: skip


def wrong(part: Run) -> str | None:
    """What is wrong with what came out; None when nothing is."""
    found = list(part["accounting"]["disagreements"])
    for path, run in part["runs"].items():
        if run["wrong_answers"]:
            found.append(f"{run['wrong_answers']} wrong answers over {path}")
    insane = part["runs"]["insane"]
    silent = [who for who, loop in insane["loops"].items() if not loop["running_at_the_end"]]
    found += [f"the {who} loop over INSANE was not running at the end" for who in silent]
    found += [f"the {name} had pid {a}, then {b}" for name, (a, b) in part["pids"].items() if a != b]
    return "; ".join(found) or None
