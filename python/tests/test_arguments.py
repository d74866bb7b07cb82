"""Bad input: every argument of every public call, complete by the stub; objects that are closed, of another thread, of a
parent process. Each is refused by a clear exception, and a channel that is in use meanwhile loses nothing."""

import array
import ast
import asyncio
import inspect
import math
import os
import pathlib
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import insane
import pytest

STUB = ast.parse((pathlib.Path(insane.__file__).parent / "_native.pyi").read_text())
#: Only `insane.tc` calls these: test_tc.py has what they refuse.
BEHIND_TC = {"TrafficClient", "TrafficSubscription"}
STUB.body = [n for n in STUB.body if not (isinstance(n, ast.ClassDef) and n.name in BEHIND_TC)]

#: A wrong value, the exception, its number (None: Python's own), and what the text says.
Wrong = tuple[Any, type[BaseException], int | None, str]

NO_INT: list[Wrong] = [(value, TypeError, None, "it takes an int, not") for value in ("1", 1.5, None, b"1")]
NO_TEXT: list[Wrong] = [(value, TypeError, None, "str") for value in (5, b"text", ["text"])]
NO_SECONDS: list[Wrong] = [("1", TypeError, None, "must be real number, not str")]
NO_BOOL: list[Wrong] = [(value, TypeError, None, "bool") for value in (1, "yes", None)]
TIME = "it takes seconds from 0 to 1000000000"
BAD_TIMES: list[Wrong] = [(v, insane.InvalidArgument, 20, TIME) for v in (-1, -0.001, math.nan, math.inf, 1e10, 10**400)]
LONG, HALF = "a" * 256, "\udc80"
BAD_NAMES: list[Wrong] = [(name, insane.InvalidArgument, 21, "name") for name in ("a\nb", "a\0b", LONG, HALF)]
NO_SINK: list[Wrong] = [(value, TypeError, None, "Sink") for value in ("sink", None, 5)]


def whole(least: int, most: int) -> list[Wrong]:
    """What a whole number within limits must refuse."""
    values = (least - 1, most + 1, 10**400, -(10**400))
    return [*NO_INT, *((v, insane.InvalidArgument, 20, f"it takes {least} to {most}") for v in values)]


CHANNEL: list[Wrong] = [
    *((value, TypeError, None, "a name (str) or an id (int), not") for value in (None, 1.5, b"name", ["a"])),
    *BAD_NAMES,
    ("", insane.InvalidArgument, 21, "channel"),
    (-1, insane.InvalidArgument, 20, "channel is -1"),
    (2**64, insane.InvalidArgument, 20, "channel is 18446744073709551616"),
]
BIG = bytes((128 << 20) + 1)

TABLE: dict[str, list[Wrong]] = {
    "Session(app)": [*NO_TEXT, *BAD_NAMES, ("", insane.InvalidArgument, 21, "application")],
    "Session(domain)": [*NO_TEXT, *BAD_NAMES, ("nowhere", insane.NotAllowed, 60, "nowhere")],
    "Session(socket)": [
        *((value, TypeError, None, "os.PathLike") for value in (5, ["a"])),
        *(
            (value, insane.ConnectionFailed, 1, "no INSANE runtime")
            for value in ("/nonexistent", "", "a\0b", "/" + LONG)
        ),
    ],
    "Session.stream(name)": [*NO_TEXT, *BAD_NAMES, ("qos:x", insane.InvalidArgument, 21, "qos:x")],
    "Session.stream(qos)": [
        *NO_TEXT,
        ("speed=11", insane.InvalidArgument, 20, "acceleration=none|preferred"),
        (HALF, insane.InvalidArgument, 21, "qos"),
    ],
    "Session.stream(strict)": NO_BOOL,
    "Session.report(what)": [
        *NO_TEXT,
        ("weather", insane.InvalidArgument, 20, "status and doctor"),
        (HALF, insane.InvalidArgument, 21, "what"),
    ],
    "Stream.source(channel)": CHANNEL,
    "Stream.source(message_bytes)": whole(0, 128 << 20),
    "Stream.source(deadline)": [*NO_SECONDS, *BAD_TIMES],
    "Stream.source(fail_when_full)": NO_BOOL,
    "Stream.source(timestamps)": NO_BOOL,
    "Stream.source(priority)": whole(0, 255),
    "Stream.sink(channel)": CHANNEL,
    "Stream.sink(wait)": [
        *NO_TEXT,
        *((v, insane.InvalidArgument, 20, "it takes 'adaptive', 'spin' or 'sleep'") for v in ("never", "", "Spin")),
    ],
    "Stream.sink(observer)": NO_BOOL,
    "Stream.sink(scattered)": NO_BOOL,
    "Source.wait_for_sinks(count)": whole(0, 65_535),
    "Source.wait_for_sinks(timeout)": [*NO_SECONDS, *BAD_TIMES],
    "Source.wait_for_room(timeout)": [*NO_SECONDS, *BAD_TIMES],
    "Source.send(data)": [
        *((value, TypeError, None, "it takes a bytes-like object, not") for value in ("text", None, 5, [1, 2])),
        (array.array("d", [1.0]), insane.InvalidArgument, 20, "memoryview(data).cast('B')"),
        (BIG, insane.InvalidArgument, 22, "larger than the limit"),
    ],
    "Source.send(more)": NO_BOOL,
    "Source.buffer(size)": whole(0, 128 << 20),
    "Source.emit(buffer)": [(value, TypeError, None, "Buffer") for value in (b"bytes", None, memoryview(b"bytes"))],
    "Source.emit(length)": [*(row for row in NO_INT if row[0] is not None), *whole(0, 100)[len(NO_INT) :]],
    "Source.emit(more)": NO_BOOL,
    "Source.outcome(token)": [
        *whole(0, 2**64 - 1),
        (0, insane.InvalidArgument, 24, "token"),
        (10**9, insane.InvalidArgument, 24, "token"),
    ],
    "WaitSet.add(sink)": NO_SINK,
    "WaitSet.remove(sink)": NO_SINK,
    "WaitSet.wait(timeout)": [*NO_SECONDS, *BAD_TIMES],
    "Sink.consume(timeout)": [*NO_SECONDS, *BAD_TIMES],
    "receive(sink)": NO_SINK,
    "stream_messages(sink)": NO_SINK,
    "messages(sink)": NO_SINK,
    "messages(timeout)": [*NO_SECONDS, *BAD_TIMES],
}

#: Whose every value of the right type is a right one.
ANY = {
    "Session.stream(strict)",
    "Stream.source(fail_when_full)",
    "Stream.source(timestamps)",
    "Stream.sink(observer)",
    "Stream.sink(scattered)",
    "Source.send(more)",
    "Source.emit(more)",
}
#: Whose right values are other objects of the library.
OBJECTS = {
    "Source.emit(buffer)",
    "WaitSet.add(sink)",
    "WaitSet.remove(sink)",
    "receive(sink)",
    "stream_messages(sink)",
    "messages(sink)",
}


def methods() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every public method of the stub, and the constructors."""
    for node in (n for n in STUB.body if isinstance(n, ast.ClassDef)):
        for method in (m for m in node.body if isinstance(m, ast.FunctionDef)):
            if method.name == "__new__" or not method.name.startswith("_"):
                yield node.name, method


def is_property(method: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "property" for d in method.decorator_list)


def arguments() -> set[str]:
    """Every argument of every public call: of the classes by the stub, of the functions by themselves."""
    found = set()
    for owner, method in methods():
        name = owner if method.name == "__new__" else f"{owner}.{method.name}"
        names = [a.arg for a in [*method.args.args[1:], *method.args.kwonlyargs]]
        found |= {f"{name}({a})" for a in names}
    functions = [f for f in (getattr(insane, n) for n in insane.__all__) if inspect.isfunction(f)]
    return found | {f"{f.__name__}({a})" for f in functions for a in inspect.signature(f).parameters}


def test_the_table_is_complete() -> None:
    assert set(TABLE) == arguments()
    for name, rows in TABLE.items():
        assert any(row[1] is TypeError for row in rows), f"{name}: no wrong type"
        assert name in ANY | OBJECTS or any(row[1] is not TypeError for row in rows), f"{name}: no wrong value"
    classes = {n for n in insane.__all__ if inspect.isclass(getattr(insane, n))}
    of_errors = {n for n in classes if issubclass(getattr(insane, n), insane.InsaneError)}
    in_stub = {n.name for n in STUB.body if isinstance(n, ast.ClassDef)}
    # Errors and events are made by the library; nobody else calls them.
    assert classes - of_errors - {"Event"} == in_stub


class Traffic:
    """A reliable channel that is in use while other things go wrong."""

    def __init__(self, runtime: str) -> None:
        self.sessions = [insane.Session(app, socket=runtime) for app in ("busy source", "busy sink")]
        streams = [s.stream("busy", qos="reliability=reliable") for s in self.sessions]
        self.sink, self.source = streams[1].sink("busy"), streams[0].source("busy")
        assert self.source.wait_for_sinks(1) == 1
        self.stop, self.emitted, self.seen, self.wrong = threading.Event(), 0, 0, 0
        self.threads = [threading.Thread(target=self.emit), threading.Thread(target=self.consume)]
        for thread in self.threads:
            thread.start()

    def emit(self) -> None:
        while not self.stop.is_set():
            self.emitted += 1
            self.source.send(self.emitted.to_bytes(8, "little") * (1 + self.emitted % 40))
            time.sleep(0.001)
        self.emitted += 1
        self.source.send(b"")

    def consume(self) -> None:
        while True:
            with self.sink.consume(30) as message:
                self.seen += 1
                if len(message) == 0:
                    return
                self.wrong += bytes(message) != self.seen.to_bytes(8, "little") * (1 + self.seen % 40)

    def finish(self) -> None:
        """Reconciles what was emitted, what was counted at both ends, and what was seen."""
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        end = time.monotonic() + 10
        while True:
            cells = [c for s in self.sessions for c in s.counts()]
            counted = [
                sum(c[k] for c in cells if c["end"] == e)
                for e, k in (("producing", "intended"), ("consuming", "delivered"))
            ]
            if counted == [self.emitted, self.seen] or time.monotonic() > end:
                break
            time.sleep(0.005)
        assert (counted, self.wrong) == ([self.emitted, self.emitted], 0) and self.seen == self.emitted
        for session in self.sessions:
            session.close()


@pytest.fixture(scope="module")
def traffic(runtime: str) -> Iterator[Traffic]:
    traffic = Traffic(runtime)
    yield traffic
    traffic.finish()


class Objects:
    """One of each kind, open."""

    def __init__(self, runtime: str) -> None:
        self.Session = insane.Session("objects", socket=runtime)
        self.Stream = self.Session.stream()
        self.Sink, self.Source = self.Stream.sink("objects"), self.Stream.source("objects")
        assert self.Source.wait_for_sinks(1) == 1
        self.Outcome = self.Source.outcome(self.Source.send(b"x" * 500))
        self.Message = self.Sink.consume(5)
        self.Buffer = self.Source.buffer(100)
        self.WaitSet = insane.WaitSet()
        self.WaitSet.add(self.Sink)

    def good(self) -> dict[str, dict[str, Any]]:
        """Right arguments of calls that need some."""
        return {
            "Session.report": {"what": "status"},
            "Stream.source": {"channel": "more"},
            "Stream.sink": {"channel": "more"},
            "Source.send": {"data": b"x"},
            "Source.buffer": {"size": 100},
            "Source.emit": {"buffer": self.Buffer},
            "Source.outcome": {"token": 1},
            "Source.wait_for_sinks": {"timeout": 60.0},
            "Source.wait_for_room": {"timeout": 60.0},
            "Sink.consume": {"timeout": 60.0},
            "WaitSet.add": {"sink": self.Sink},
            "WaitSet.remove": {"sink": self.Sink},
            "WaitSet.wait": {"timeout": 60.0},
            "receive": {"sink": self.Sink},
            "stream_messages": {"sink": self.Sink},
            "messages": {"sink": self.Sink},
        }


@pytest.fixture
def objects(runtime: str) -> Iterator[Objects]:
    made = Objects(runtime)
    yield made
    made.Session.close()


def call(objects: Objects, name: str, given: dict[str, Any]) -> object:
    """Calls `Class.method`, `Class` or a function."""
    owner, _, method = name.partition(".")
    if method:
        return getattr(getattr(objects, owner), method)(**given)
    result = getattr(insane, name)(**given)
    if inspect.isasyncgen(result):
        return asyncio.run(anext(result))
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    return next(result) if inspect.isgenerator(result) else result


@pytest.mark.parametrize("name", TABLE)
def test_bad_arguments_are_refused(name: str, runtime: str, objects: Objects, traffic: Traffic) -> None:
    function, argument = name.rstrip(")").split("(")
    good = {"app": "another", "socket": runtime} if function == "Session" else objects.good().get(function, {})
    for value, kind, number, text in TABLE[name]:
        with pytest.raises(kind) as raised:
            call(objects, function, {**good, argument: value})
        said = str(raised.value)
        assert type(raised.value) is kind, f"{value!r:.80}: {raised.value!r}"
        assert text in said and "\n" not in said and len(said) < 600, f"{value!r:.80}: {said}"
        assert argument in said.lower() or number not in (None, 20), said
        assert getattr(raised.value, "number", None) == number, f"{value!r:.80}: {raised.value!r}"
    # Whatever was refused, what was right before still is.
    objects.Source.send(b"after")
    with objects.Sink.consume(10) as message:
        assert bytes(message) == b"after"
    objects.Buffer.discard()
    objects.Message.release()
    assert objects.Session.counts() and objects.Source.outcome(2).delivered == 1


def members(owner: str) -> dict[str, Callable[[Objects], Any]]:
    """Every public method and property of a class, and its length and its views, as calls with right arguments."""
    calls: dict[str, Callable[[Objects], Any]] = {}
    for of, method in methods():
        if of == owner and method.name != "__new__":
            name = f"{of}.{method.name}"
            if is_property(method):
                calls[name] = lambda o, n=method.name: getattr(getattr(o, owner), n)  # type: ignore[misc]
            else:
                calls[name] = lambda o, n=name: call(o, n, o.good().get(n, {}))  # type: ignore[misc]
    specials = {"__len__": len, "__bytes__": bytes, "__buffer__": memoryview}
    stub = next(n for n in STUB.body if isinstance(n, ast.ClassDef) and n.name == owner)
    for special in (m.name for m in stub.body if isinstance(m, ast.FunctionDef) and m.name in specials):
        calls[f"{owner}.{special}"] = lambda o, s=special: specials[s](getattr(o, owner))  # type: ignore[misc,operator]
    return calls


def outcome(function: Callable[[Objects], Any], objects: Objects) -> str:
    """`fine`, or the exception's kind and its code."""
    try:
        function(objects)
    except insane.InsaneError as error:
        return error.code
    except Exception as error:
        return type(error).__name__
    return "fine"


#: What still works, or fails in its own way, when the object is closed, emitted or released.
CLOSED = {
    "Session": {"Session.close": "fine"},
    "Stream": {"Stream.name": "fine", "Stream.effective_qos": "fine"},
    "Sink": {f"Sink.{n}": "fine" for n in ("id", "channel", "wait", "copies", "close")},
    # Memory can be had as long as the session is there; it cannot be emitted.
    "Source": {f"Source.{n}": "fine" for n in ("epoch", "channel", "sinks", "close", "buffer")},
    "Message": {"Message.release": "fine", "Message.__buffer__": "InvalidArgument"},
    "Buffer": {"Buffer.discard": "fine", "Buffer.__len__": "fine", "Buffer.__buffer__": "BufferError"},
}


@pytest.mark.parametrize("owner", CLOSED)
@pytest.mark.parametrize("by", ["itself", "the session"])
def test_closed_objects_say_so(owner: str, by: str, objects: Objects, traffic: Traffic) -> None:
    if by == "the session":
        objects.Session.close()
    if owner in ("Session", "Stream"):
        objects.Session.close()
    elif owner == "Message":
        objects.Message.release()
    elif owner == "Buffer":
        objects.Buffer.discard()
    else:
        getattr(objects, owner).close()
    start = time.monotonic()
    found = {name: outcome(function, objects) for name, function in members(owner).items()}
    assert time.monotonic() - start < 30, "a closed object makes its caller wait"
    usual = "InvalidArgument" if owner in ("Message", "Buffer") else "Closed"
    assert found == {name: CLOSED[owner].get(name, usual) for name in found}
    if owner == "Buffer":
        with pytest.raises(insane.InsaneError) as raised:
            objects.Source.emit(objects.Buffer)
        assert raised.value.code in ("InvalidArgument", "Closed")


def test_a_wait_set_tells_of_closed_sinks_once(objects: Objects, traffic: Traffic) -> None:
    objects.Sink.close()
    assert objects.WaitSet.wait(10) == [objects.Sink] and len(objects.WaitSet) == 0
    with pytest.raises(insane.TimedOut):
        objects.WaitSet.wait(0.01)


def test_other_threads_use_the_same_objects(objects: Objects, traffic: Traffic) -> None:
    found: dict[str, str] = {}

    def elsewhere() -> None:
        with memoryview(objects.Buffer) as view:
            view[:5] = b"there"
        found["read"] = bytes(objects.Message)[:1].decode()
        objects.Message.release()
        objects.Source.emit(objects.Buffer, 5)
        # Forgotten here though taken elsewhere: the memory comes back all the same.
        objects.Message = objects.Sink.consume(10)
        found["seen"] = bytes(objects.Message).decode()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(30)
    assert found == {"read": "x", "seen": "there"}
    objects.Message.release()
    for owner in ("Session", "Stream", "Source", "Sink", "WaitSet"):
        for name, function in members(owner).items():
            if name.endswith((".close", ".emit", ".consume", ".wait")):
                continue
            results: list[str] = []
            thread = threading.Thread(target=lambda f=function, r=results: r.append(outcome(f, objects)))
            thread.start()
            thread.join(60)
            assert results == ["InvalidArgument" if name == "WaitSet.add" else "fine"], name


def test_messages_dropped_in_another_thread_give_their_memory_back(objects: Objects) -> None:
    objects.Message.release()
    for _ in range(300):
        objects.Source.send(b"x" * 5000)
        kept = [objects.Sink.consume(10), objects.Source.buffer(5000)]
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join(10)
        assert not kept


#: What works in a child: what it copied of its own, and giving up.
IN_CHILD = {"Stream.name", "Sink.id", "Sink.channel", "Sink.wait", "Source.epoch", "Source.channel", "Buffer.__len__"}
GIVING_UP = {"Session.close", "Sink.close", "Source.close", "Message.release", "Buffer.discard"}


def test_a_forked_child_is_told_so_by_everything(objects: Objects, traffic: Traffic) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever hangs or crashes is ended; nothing of pytest may run twice.
        signal.alarm(30)
        bad = []
        try:
            for owner in ("Session", "Stream", "Sink", "Source", "Message", "Buffer", "WaitSet"):
                for name, function in members(owner).items():
                    wanted = "fine" if name in IN_CHILD | GIVING_UP else "Forked"
                    got = outcome(function, objects)
                    if got != wanted:
                        bad.append(f"{name}: {got}")
            for name in ("receive", "stream_messages", "messages"):
                got = outcome(lambda o, n=name: call(o, n, o.good()[n]), objects)  # type: ignore[misc]
                if got != "Forked":
                    bad.append(f"{name}: {got}")
            # A child may have a session of its own.
            with insane.Session("child", socket=os.environ["INSANE_SOCKET"]) as own:
                stream = own.stream()
                sink, source = stream.sink("child"), stream.source("child")
                source.wait_for_sinks(1)
                source.send(b"of its own")
                if bytes(sink.consume(10)) != b"of its own":
                    bad.append("its own session")
        except BaseException as error:
            bad.append(repr(error))
        os.write(writer, "\n".join(["done", *bad]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert (said, os.waitstatus_to_exitcode(status)) == ("done", 0)
    objects.Source.send(b"the parent goes on")
    assert bytes(objects.Sink.consume(10)) == b"the parent goes on"
    assert bytes(objects.Message)[:1] == b"x"


def test_errors_cross_to_other_processes() -> None:
    made = insane._errors.make(5, "Timeout", "too late")
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.number, again.code, str(again)) == (insane.TimedOut, 5, "Timeout", "too late")
