import asyncio
import contextlib
import gc
import os
import pathlib
import subprocess
import sys
import threading
import time

import insane
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def pair(session: insane.Session, name: str, **options: object) -> tuple[insane.Source, insane.Sink]:
    stream = session.stream()
    sink = stream.sink(name, **options)  # type: ignore[arg-type]
    source = stream.source(name)
    assert source.wait_for_sinks(1) == 1
    return source, sink


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1024, 65_000, 1 << 20, 5 << 20])
def test_a_message_of_every_size_arrives_whole(session: insane.Session, size: int) -> None:
    source, sink = pair(session, "sizes")
    payload = os.urandom(size)
    token = source.send(payload)
    with sink.consume(5) as message:
        assert len(message) == size and message.sequence == token
        assert bytes(message) == payload
        with memoryview(message) as view:
            assert view.readonly and view == payload
    outcome = source.outcome(token)
    assert (outcome.intended, outcome.delivered, outcome.pending) == (1, 1, 0)


def test_a_sink_that_spins_takes_the_core_and_the_others_leave_it(session: insane.Session) -> None:
    taken = {}
    for wait in ("adaptive", "spin", "sleep"):
        sink = session.stream().sink("nothing comes", wait=wait)
        before = time.thread_time()
        with pytest.raises(insane.TimedOut):
            sink.consume(1)
        taken[wait] = time.thread_time() - before
        sink.close()
    # Compared with each other only: how much of a core there is depends on who else is on the machine.
    assert taken["spin"] >= 10 * max(taken["sleep"], taken["adaptive"]), taken


def test_buffers_are_written_and_read_without_a_copy(session: insane.Session) -> None:
    source, sink = pair(session, "views")
    buffer = source.buffer(10_000)
    view = memoryview(buffer)
    view[:] = b"a" * 10_000
    with pytest.raises(BufferError):
        source.emit(buffer)
    view.release()
    source.emit(buffer, 9_000)
    with pytest.raises(insane.InvalidArgument):
        source.emit(buffer)
    with pytest.raises(BufferError):
        memoryview(buffer)
    message = sink.consume(5)
    first, second = memoryview(message), memoryview(message)
    assert len(first) == 9_000 and first == second
    with pytest.raises(BufferError):
        message.release()
    first.release()
    second.release()
    message.release()
    with pytest.raises(ValueError):
        len(message)


def test_the_pieces_of_a_message_are_all_of_it(session: insane.Session) -> None:
    source, sink = pair(session, "pieces", scattered=True)
    payload = os.urandom(100_000)
    source.send(payload)
    message = sink.consume(5)
    pieces = message.pieces()
    views = [memoryview(piece) for piece in pieces]
    assert b"".join(views) == payload and [len(piece) for piece in pieces] == [len(view) for view in views]
    # From this host it comes as one, which nobody has copied.
    assert len(views) == 1 and views[0].readonly and message.copies == 0
    with pytest.raises(BufferError):
        message.release()
    for view in views:
        view.release()
    message.release()
    with pytest.raises(ValueError):
        memoryview(pieces[0])
    with pytest.raises(ValueError):
        message.pieces()
    copies = sink.copies
    assert (copies.scattered, copies.pieces, copies.runtime, copies.here) == (0, 0, 0, 0)


def test_a_message_that_is_forgotten_gives_its_memory_back(session: insane.Session) -> None:
    source, sink = pair(session, "forgotten")
    for i in range(3000):
        source.send(i.to_bytes(4, "little") * 100)
        assert bytes(sink.consume(5))[:4] == i.to_bytes(4, "little")
    gc.collect()


async def test_asyncio_gets_every_message(session: insane.Session) -> None:
    source, sink = pair(session, "async")

    def emit() -> None:
        for i in range(300):
            source.wait_for_room()
            source.send(i.to_bytes(2, "little"))
            if i % 50 == 0:
                time.sleep(0.01)

    writer = threading.Thread(target=emit)
    writer.start()
    for i in range(300):
        with await asyncio.wait_for(insane.receive(sink), 10) as message:
            assert bytes(message) == i.to_bytes(2, "little")
    writer.join()
    asyncio.get_running_loop().call_later(0.05, sink.close)
    assert [m async for m in insane.stream_messages(sink)] == []


async def test_two_tasks_on_one_stream_both_get_their_messages(session: insane.Session) -> None:
    stream = session.stream()
    busy, waits = stream.sink("busy"), stream.sink("waits")
    to_busy, to_waits = stream.source("busy"), stream.source("waits")
    assert to_busy.wait_for_sinks(1) == 1 and to_waits.wait_for_sinks(1) == 1
    for i in range(20):
        waiting = asyncio.create_task(insane.receive(waits))
        await asyncio.sleep(0.01)
        # The other task is busy meanwhile. Then it looks for messages of its own, finds none, and waits.
        to_waits.send(i.to_bytes(2, "little"))
        looking = asyncio.create_task(insane.receive(busy))
        with await asyncio.wait_for(waiting, 10) as message:
            assert bytes(message) == i.to_bytes(2, "little")
        to_busy.send(b"go")
        with await asyncio.wait_for(looking, 10) as message:
            assert bytes(message) == b"go"


def test_who_closes_a_sink_leaves_the_next_one_alone(session: insane.Session) -> None:
    stream = session.stream("closes")
    sink = stream.sink("first")
    sink.close()
    sink = stream.sink("second")
    gc.collect()
    source = stream.source("second")
    assert source.wait_for_sinks(1) == 1
    source.send(b"still here")
    assert bytes(sink.consume(5)) == b"still here"


@pytest.mark.parametrize("way", ["bytes", "bytearray", "buffer"])
def test_a_thread_that_waits_for_room_lets_others_make_it(session: insane.Session, way: str) -> None:
    stream = session.stream("room", qos="reliability=reliable")
    sink, source = stream.sink(way), stream.source(way)
    assert source.wait_for_sinks(1) == 1
    count = 3 * 2048
    seen: list[int] = []

    def read() -> None:
        with contextlib.suppress(insane.TimedOut):
            while len(seen) < count:
                with sink.consume(5) as message:
                    seen.append(message.sequence)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(count):
        if way == "bytes":
            source.send(i.to_bytes(100, "little"))
        elif way == "bytearray":
            source.send(bytearray(i.to_bytes(100, "little")))
        else:
            # So large that slots run short before places in the ring do.
            source.emit(source.buffer(100_000))
    reader.join()
    assert seen == list(range(1, count + 1))


def test_other_threads_run_while_one_waits(session: insane.Session) -> None:
    source, sink = pair(session, "gil", wait="sleep")
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    with pytest.raises(insane.TimedOut):
        sink.consume(0.3)
    before = ticks
    stop.set()
    ticker.join()
    assert before > 10
    source.send(b"x")
    assert bytes(sink.consume(5)) == b"x"


def test_bad_arguments_are_refused(runtime: str, session: insane.Session) -> None:
    stream = session.stream()
    with pytest.raises(insane.InvalidArgument, match="speed=11"):
        session.stream(qos="speed=11")
    with pytest.raises(insane.Conflict):
        session.stream("timely", qos="timing=sensitive", strict=True)
    with pytest.raises(insane.InvalidArgument):
        stream.sink("x", wait="never")  # type: ignore[arg-type]
    with pytest.raises(insane.InvalidArgument):
        stream.source("x", deadline=-1)
    with pytest.raises(insane.InvalidArgument):
        stream.sink("")
    with pytest.raises(insane.ConnectionFailed, match="/nonexistent"):
        insane.Session("x", socket="/nonexistent/socket")
    with pytest.raises(insane.NotAllowed):
        insane.Session("x", socket=runtime, domain="nowhere")
    source = stream.source("bad")
    with pytest.raises(insane.InvalidArgument):
        source.outcome(7)
    with pytest.raises(insane.InvalidArgument):
        source.buffer(1 << 40)
    with pytest.raises(TypeError):
        source.send("text")  # type: ignore[arg-type]
    session.close()
    with pytest.raises(insane.Closed):
        session.stream()


def test_the_numbers_are_those_of_the_library() -> None:
    assert insane.CODES["Timeout"] == 5 and insane.CODES["NoBuffer"] == 80
    for name, number in insane.CODES.items():
        made = insane._errors.make(number, name, "text")
        assert isinstance(made, insane.InsaneError) and (made.number, made.code) == (number, name)


def test_a_forked_child_is_told_so(session: insane.Session) -> None:
    source, sink = pair(session, "fork")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sink.try_consume()
        except insane.InsaneError as error:
            code = 0 if error.code == "Forked" else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    source.send(b"still here")
    assert bytes(sink.consume(5)) == b"still here"


def test_an_interpreter_ends_with_everything_open(runtime: str) -> None:
    code = (
        "import insane; s = insane.Session('left open'); t = s.stream(); k = t.sink('e'); o = t.source('e');"
        "o.send(b'x'); m = k.consume(5); v = memoryview(m); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n" and done.returncode == 0, done.stderr


def test_control_c_ends_a_wait(runtime: str) -> None:
    code = (
        "import insane, os, signal, threading; s = insane.Session('ctrl-c')\n"
        "k = s.stream().sink('never', wait='sleep')\n"
        # A shell's background job has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    k.consume()\nexcept KeyboardInterrupt:\n    print('interrupted')"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=20, capture_output=True, text=True, check=False)
    assert done.stdout == "interrupted\n", done.stderr


def test_the_examples_talk_to_each_other(runtime: str) -> None:
    sink = subprocess.Popen([sys.executable, EXAMPLES / "hello_sink.py"], stdout=subprocess.PIPE, text=True)
    subprocess.run([sys.executable, EXAMPLES / "hello_source.py"], timeout=30, check=True)
    heard, _ = sink.communicate(timeout=30)
    assert heard.splitlines() == [f"hello {i} from Python" for i in range(10)]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ping_pong.py", "500"], timeout=60, capture_output=True, text=True, check=True
    )
    assert "500 round trips" in done.stdout


async def test_asyncio_sleeps_without_a_thread(session: insane.Session) -> None:
    source, sink = pair(session, "sleepy", wait="sleep")
    loop = asyncio.get_running_loop()
    threads = threading.active_count()
    for i in range(300):
        # The message comes while the loop sleeps.
        loop.call_later(0.001, source.send, i.to_bytes(2, "little"))
        with await asyncio.wait_for(insane.receive(sink), 10) as message:
            assert bytes(message) == i.to_bytes(2, "little")
    assert threading.active_count() == threads
    # A wait that was given up leaves nothing behind, and the next one works.
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(insane.receive(sink), 0.02)
    assert not insane._waiting
    waiters = [asyncio.create_task(insane.receive(sink)) for _ in range(3)]
    for _ in waiters:
        await asyncio.sleep(0.01)
        source.send(b"for one of them")
    assert [bytes(m) for m in await asyncio.wait_for(asyncio.gather(*waiters), 10)] == [b"for one of them"] * 3


def test_a_wait_set_serves_many(session: insane.Session) -> None:
    stream = session.stream()
    sinks = [stream.sink(f"many {i}") for i in range(10)]
    sources = [stream.source(f"many {i}") for i in range(10)]
    assert all(s.wait_for_sinks(1) == 1 for s in sources)
    waits = insane.WaitSet()
    for sink in sinks:
        waits.add(sink)
    with pytest.raises(insane.InvalidArgument):
        waits.add(sinks[0])
    assert len(waits) == 10 and waits.fileno() >= 0
    with pytest.raises(insane.TimedOut):
        waits.wait(0.01)
    for i in range(100):
        sources[i * 3 % 10].send(i.to_bytes(1, "little"))
        (ready,) = waits.wait(10)
        assert ready is sinks[i * 3 % 10]
        with ready.consume(0) as message:
            assert bytes(message) == i.to_bytes(1, "little")
    assert waits.ready() == []
    waits.remove(sinks[0])
    with pytest.raises(insane.InvalidArgument):
        waits.remove(sinks[0])
    sources[0].send(b"not looked at")
    # It is on the link that all share, so the set looks once and then knows that it is nobody's here.
    assert waits.arm() is False and waits.ready() == [] and waits.arm() is True
    sinks[1].close()
    assert waits.wait(10) == [sinks[1]]
    assert len(waits) == 8
    with pytest.raises(insane.InvalidArgument):
        insane.WaitSet().wait()


def test_events_say_what_happened(session: insane.Session) -> None:
    assert session.events() == []
    with insane.Session("the other one") as other:
        source, sink = other.stream().source("events"), session.stream().sink("events")
        assert source.wait_for_sinks(1) == 1
        source.send(b"x")
        assert bytes(sink.consume(5)) == b"x"
    end = time.monotonic() + 10
    events: list[insane.Event] = []
    while not events and time.monotonic() < end:
        events = session.events()
        time.sleep(0.005)
    assert events == [(4, "PeerLost", "the session of `the other one` is gone")]


def test_what_a_stream_gets_on_its_host_is_told_with_a_reason_for_each_downgrade(session: insane.Session) -> None:
    assert session.stream().effective_qos() == [("local", "shm", "shm", "", [])]
    [(peer, datapath, transport, qos, reasons)] = session.stream(qos="timing=sensitive").effective_qos()
    assert (peer, datapath, transport, qos) == ("local", "shm", "shm", "")
    assert len(reasons) == 1 and reasons[0].startswith("timing=sensitive: between sessions of one host")


def test_what_a_stream_gets_towards_another_host_is_an_event_with_the_reason(hosts: list[pathlib.Path]) -> None:
    with insane.Session("near", socket=hosts[0]) as near, insane.Session("far", socket=hosts[1]) as far:
        qos = "acceleration=preferred,reliability=reliable"
        stream, other = (session.stream("fast", qos=qos) for session in (near, far))
        sink, source = other.sink("c"), stream.source("c")
        assert source.wait_for_sinks(1, 20) == 1
        token = source.send(b"by the kernel")
        assert bytes(sink.consume(20)) == b"by the kernel"
        towards = [one for one in stream.effective_qos() if one[0] == "far"]
        assert [one[1:4] for one in towards] == [("udp", "reliable", "reliability=reliable")]
        [why] = towards[0][4]
        assert why.startswith("acceleration=preferred: near and far have no accelerated datapath in common: ")
        told = f"stream `fast` towards far: udp/reliable reliability=reliable: {why}"
        [event] = [event for event in near.events() if event == (3, "QosChanged", told)]
        assert (event.stream, event.peer, event.moved_us) == ("fast", "far", None)
        end = time.monotonic() + 20
        while source.outcome(token).pending and time.monotonic() < end:
            time.sleep(0.005)
        outcome = source.outcome(token)
        assert (outcome.intended, outcome.delivered, outcome.pending) == (1, 1, 0)


def test_an_event_is_a_tuple_that_carries_the_pause_of_a_move() -> None:
    number, name, text = event = insane.Event(3, "QosChanged", "words", "fast", "far", 1500)
    assert (number, name, text) == event == (3, "QosChanged", "words")
    assert (event.stream, event.peer, event.moved_us) == ("fast", "far", 1500)
    assert insane.Event(1, "RuntimeLost", "words").moved_us is None


def test_a_batch_arrives_in_order(session: insane.Session) -> None:
    stream = session.stream()
    sink, source = stream.sink("batch"), stream.source("batch")
    assert source.wait_for_sinks() == 1
    for first in range(0, 300, 30):
        for n in range(first, first + 30):
            payload = n.to_bytes(4, "little")
            if n % 3 == 0:
                source.send(payload, more=True)
            elif n % 3 == 1:
                source.send(bytearray(payload), more=True)
            else:
                buffer = source.buffer(4)
                with memoryview(buffer) as view:
                    view[:] = payload
                source.emit(buffer, more=n % 2 == 0)
        source.flush()
        for n in range(first, first + 30):
            assert bytes(sink.consume(5)) == n.to_bytes(4, "little")
