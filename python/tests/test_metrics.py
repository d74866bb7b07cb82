"""`insane metrics`, read by the parsers of Prometheus's own client library."""

import json
import pathlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping

import insane
import pytest
from conftest import built
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

Parser = Callable[[str], Iterable[Metric]]
Series = dict[str, list[tuple[dict[str, str], float]]]

openmetrics: Parser = read_openmetrics
prometheus: Parser = read_prometheus


def command(socket: pathlib.Path, *arguments: str) -> list[str]:
    return [str(built("insane")), "--socket", str(socket), *arguments]


def ask(socket: pathlib.Path, *arguments: str) -> str:
    return subprocess.run(command(socket, *arguments), check=True, capture_output=True, text=True, timeout=30).stdout


def series(families: Iterable[Metric]) -> Series:
    found: Series = {}
    for family in families:
        assert family.documentation and family.type in ("counter", "gauge", "info"), family
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def one(found: Series, name: str, **labels: str) -> float:
    values = [value for has, value in found[name] if labels.items() <= has.items()]
    assert len(values) == 1, f"{name} {labels}: {found[name]}"
    return values[0]


def numbers(value: Mapping[str, object]) -> set[str]:
    """The keys of all that is a number in an object."""
    return {key for key, is_ in value.items() if isinstance(is_, (bool, int))}


@pytest.fixture
def traffic(hosts: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """The first of two hosts, when a stream that wanted more than there is has brought messages to the second."""
    with insane.Session("near", socket=hosts[0]) as near, insane.Session("far", socket=hosts[1]) as far:
        qos = "acceleration=preferred,reliability=reliable"
        sink = far.stream("st", qos=qos).sink("temperature")
        source = near.stream("st", qos=qos).source("temperature")
        assert source.wait_for_sinks(1, timeout=20) == 1
        for at in range(5):
            source.send(b"x" * 100)
            assert bytes(sink.consume(timeout=20)) == b"x" * 100, at
        end = time.monotonic() + 20
        while True:
            status = json.loads(ask(hosts[0], "--json", "status"))
            cells = [cell for s in status["sessions"] for cell in s["counters"]]
            peers = [e["peer"] for s in status["streams"] for e in s["effective"]]
            # The network's part of the report is renewed from time to time.
            if "far" in peers and any(cell["counts"].get("delivered") == 5 for cell in cells):
                break
            assert time.monotonic() < end, status
            time.sleep(0.02)
        yield hosts[0]


def test_metrics_are_what_status_says(traffic: pathlib.Path) -> None:
    found = series(openmetrics(ask(traffic, "metrics")))
    status = json.loads(ask(traffic, "--json", "status"))
    assert one(found, "insane_left_out_series") == 0
    assert one(found, "insane_runtime_info", version=status["version"]) == 1
    assert 0 <= status["uptime_s"] - one(found, "insane_uptime_seconds") < 20
    # Two commands have asked in between.
    assert 0 < one(found, "insane_opened_sessions_total") <= status["counters"]["sessions_opened"]
    # What the sessions counted stands still now.
    place = {"domain": "default", "stream": "st", "channel": "temperature"}
    for session in (s for s in status["sessions"] if not s["app"].startswith("insane ")):
        for cell in session["counters"]:
            labels = {
                "session": session["session"],
                "end": cell["end"],
                "source": cell["source"],
                "sink": cell["sink"] or "",
            }
            for count, value in cell["counts"].items():
                name = "insane_payload_bytes_total" if count == "bytes" else f"insane_{count}_messages_total"
                assert one(found, name, **labels, **place) == value
    assert one(found, "insane_emitted_messages_total", app="near", **place) == 5
    assert one(found, "insane_payload_bytes_total", app="near", end="source", **place) == 500
    assert one(found, "insane_delivered_messages_total", end="consuming", **place) == 5
    # Nothing that is a number is missing.
    network = status["network"]
    host, port, datapath = network["hosts"][0], network["ports"][0], network["datapaths"][0]
    # Of the host's own numbers those that its paths have are theirs.
    twins = {"rtt_us", "sent_frames", "received_frames", "lost_frames", "duplicates", "malformed"}
    twins |= {"overtaken", "refused", "connections"}
    assert twins <= numbers(host["paths"][0])
    labelled = {"host": "far", "host_address": host["address"]}
    for metric, value in {"sinks": 1, "outgoing_flows": 1, "connected": 1, "losses_total": 0}.items():
        assert one(found, f"insane_host_{metric}", **labelled) == value
    assert len([n for n in found if n.startswith("insane_host_")]) == len(numbers(host) - twins) + len(host["moved"])
    assert len([n for n in found if n.startswith("insane_path_")]) == len(numbers(host["paths"][0]))
    assert one(found, "insane_path_connected", datapath="udp", **labelled) == 1
    (memory,) = network["memory"]
    assert len([n for n in found if n.startswith("insane_receive_")]) == len(numbers(memory)) == 5
    assert one(found, "insane_receive_most_bytes", domain="default") == memory["most_bytes"] == 256 << 20
    assert one(found, "insane_path_largest_frame_bytes", **labelled) == host["paths"][0]["most_frame_bytes"]
    ports = [n for n in found if n.startswith("insane_datapath_")]
    # Those, whether it is open, and the info.
    assert len(ports) == len(numbers(port)) + len(numbers(datapath)) + 2
    assert 0 < one(found, "insane_datapath_sent_frames_total", datapath="udp") <= port["sent_frames"]
    assert one(found, "insane_datapath_open", datapath="udp", address=datapath["address"]) == 1
    assert one(found, "insane_channel_sources", **place) == 1


def test_metrics_say_why_a_stream_has_no_better_datapath(traffic: pathlib.Path) -> None:
    found = series(openmetrics(ask(traffic, "metrics")))
    streams = json.loads(ask(traffic, "--json", "status"))["streams"]
    effective = [e for s in streams if s["name"] == "st" for e in s["effective"] if e["peer"] == "far"]
    assert len(effective) == 1 and effective[0]["reasons"], streams
    labels = {"domain": "default", "stream": "st", "peer": "far", "reason": "; ".join(effective[0]["reasons"])}
    assert one(found, "insane_effective_qos_info", datapath="udp", transport="reliable", **labels) == 1


def test_metrics_for_the_textfile_collector_are_in_the_older_format(
    traffic: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "insane.prom"
    assert ask(traffic, "metrics", "--write", str(file), "--most-series", "20") == ""
    found = series(prometheus(file.read_text()))
    assert "\n# TYPE insane_opened_sessions_total counter\n" in file.read_text()
    # That reader knows no info.
    assert "\n# TYPE insane_runtime_info gauge\n" in f"\n{file.read_text()}"
    assert sum(len(values) for values in found.values()) == 20
    assert one(found, "insane_left_out_series") > 50


def test_metrics_over_http(traffic: pathlib.Path) -> None:
    refused = subprocess.run(command(traffic, "metrics", "--listen", "0.0.0.0:0"), capture_output=True, text=True)
    assert refused.returncode == 2 and "--beyond-loopback" in refused.stderr
    with subprocess.Popen(command(traffic, "metrics", "--listen", "0"), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            assert url.startswith("http://127.0.0.1:") and url.endswith("/metrics")
            for accept, parser in (("application/openmetrics-text;version=1.0.0", openmetrics), ("*/*", prometheus)):
                request = urllib.request.Request(url, headers={"Accept": accept})
                with urllib.request.urlopen(request, timeout=20) as answer:
                    kind = "application/openmetrics-text" if parser is openmetrics else "text/plain"
                    assert answer.headers["Content-Type"].startswith(kind)
                    found = series(parser(answer.read().decode()))
                assert one(found, "insane_emitted_messages_total", app="near") == 5
            for wrong, code, data in ((url, 405, b"x"), (f"{url}/more", 404, None)):
                with pytest.raises(urllib.error.HTTPError) as error:
                    urllib.request.urlopen(wrong, data, timeout=20)
                assert error.value.code == code
        finally:
            server.terminate()
    none = traffic.parent / "none"
    with subprocess.Popen(command(none, "metrics", "--listen", "0"), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(server.stdout.readline().split()[-1], timeout=20)
            assert error.value.code == 503
        finally:
            server.terminate()
