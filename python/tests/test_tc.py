"""Control of traffic pipelines from Python, against a server without a radio."""

import pathlib
import pickle
import subprocess
from collections.abc import Iterator

import insane
import pytest
from insane import tc


@pytest.fixture
def client(stand_in: pathlib.Path, runtime: str, session: insane.Session) -> Iterator[tc.Client]:
    with subprocess.Popen(
        [stand_in, "tc", runtime], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield tc.Client(session, "tc", timeout=20)
        process.kill()


def test_stages_are_added_modified_and_deleted(client: tc.Client) -> None:
    first, second = client.bearers()
    assert first == tc.Bearer(0x4601, 1)
    made = client.change(
        first,
        tc.add("queue", 1, kind={"type": "codel", "target": "5ms"}),
        tc.add("filter", 7, match={"dst_port": "5201-5204"}, to={"type": "queue", "queue": 1}),
        tc.add("shaper", 1, type="token-bucket", rate="15mbit", burst="6k"),
        tc.modify("pacer", type="5g-bdp"),
        generation=0,
    )
    assert made == 1
    pipeline = client.pipeline(first)
    assert pipeline["pacer"]["type"] == "5g-bdp"
    assert pipeline["queue"][1]["kind"]["type"] == "codel"
    assert pipeline["queue"][1]["shaper"]["rate"] == "15mbit"
    state = client.state(first)
    assert state.generation == 1
    assert state.queues[1].kind == "codel"
    assert state.rlc.txbuf_occ_bytes == 0
    assert client.change(first, tc.delete("queue", 1, drop_packets=True, remove_references=True)) == 2
    assert "filter" not in client.pipeline(first)
    assert client.load(first, "fq-codel") == 3
    assert client.state(first).left_out > 900
    assert client.load(second, 'version = 1\n[[queue]]\nid = 0\nkind = { type = "pie" }') == 1
    sent, taken, done, received = client.timing()
    assert sent <= taken <= done <= received


def test_refusals_have_an_outcome_and_a_reason_and_change_nothing(client: tc.Client) -> None:
    first = client.bearers()[0]
    client.change(first, tc.add("queue", 1), tc.add("filter", 1, to={"type": "queue", "queue": 1}))
    before = client.pipeline(first)
    for outcome, change in (
        ("in-use", tc.delete("queue", 1)),
        ("unknown", tc.delete("filter", 9)),
        ("exists", tc.add("queue", 1)),
        ("exists", tc.add("scheduler", 0, type="drr")),
        ("malformed", tc.modify("pacer", type="5g-bdp", speed=11)),
    ):
        with pytest.raises(tc.Refused) as refused:
            client.change(first, tc.add("queue", 2), change)
        assert refused.value.outcome == outcome
        assert refused.value.reason
        assert refused.value.code == "InvalidArgument"
    with pytest.raises(tc.Refused) as refused:
        client.change(first, tc.modify("limit", packets=9), generation=77)
    assert refused.value.outcome == "stale"
    assert client.pipeline(first) == before
    with pytest.raises(tc.Refused, match="no bearer 9"):
        client.state(tc.Bearer(1, 9))
    copy = pickle.loads(pickle.dumps(refused.value))
    assert (copy.outcome, str(copy)) == ("stale", str(refused.value))


def test_bad_values_are_refused_here(client: tc.Client, session: insane.Session) -> None:
    first = client.bearers()[0]
    with pytest.raises(insane.InvalidArgument, match="rnti is 65536"):
        client.state(tc.Bearer(65536, 1))
    with pytest.raises(insane.InvalidArgument, match='stage is "nothing"'):
        client.change(first, tc.modify("nothing"))  # type: ignore[arg-type]
    with pytest.raises(insane.InvalidArgument, match="pipeline"):
        client.load(first, "version = 9")
    with pytest.raises(insane.InvalidArgument, match='wait is "never"'):
        tc.Client(session, "tc", wait="never")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        client.subscribe(first, period="often")  # type: ignore[arg-type]
    with pytest.raises(insane.TimedOut, match="nobody serves"):
        tc.Client(session, "nobody", timeout=0.05).bearers()


def test_indications_come_until_they_are_closed(client: tc.Client) -> None:
    first = client.bearers()[0]
    with client.subscribe(first, period=0.002, lease=0.5) as subscription:
        numbers = []
        for _ in range(50):
            indication = subscription.next(10)
            assert list(indication.bearers) == [first]
            assert indication.bearers[first].generation == 0
            numbers.append(indication.number)
        assert numbers == sorted(set(numbers))
        assert subscription.restarts == 0
    with pytest.raises(insane.Closed):
        subscription.next()
    assert len(next(client.indications(period=0.002, timeout=10)).bearers) == 2
