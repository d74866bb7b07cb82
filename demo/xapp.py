"""The demo's xApp in Python: decodes each E2 indication and answers it with a control request."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import e2ap
import insane

parser = argparse.ArgumentParser()
parser.add_argument("--path", choices=["insane", "unix", "udp", "zeromq"], default="insane")
parser.add_argument("--instance", type=int, default=0, help="by which its answers are known")
parser.add_argument("--dir", type=Path, default=Path(), help="for unix: where the socket is")
parser.add_argument("--address", default="127.0.0.1", help="for udp and zeromq: the address of this host")
arguments = parser.parse_args()

seen = bad = sent = 0
last = longest = 0.0


def say(**what: object) -> None:
    """Prints a line of JSON."""
    print(json.dumps({"pid": os.getpid(), "instance": arguments.instance, **what}), flush=True)


def answer(data: memoryview) -> bytes | None:
    """The answer to an indication; None when it is none."""
    global seen, bad, last, longest
    now = time.monotonic()
    if seen:
        longest = max(longest, now - last)
    last = now
    seen += 1
    pdu = e2ap.decode(data)
    if pdu.procedure == e2ap.RIC_INDICATION and pdu.requestor == 1021:
        return e2ap.control(arguments.instance, pdu.sn)
    bad += 1
    return None


def end_when_asked() -> None:
    """Has a thread wait for SIGTERM, which says the last word and ends the process.

    A handler of Python's runs between two steps of the interpreter: a signal that comes just before the main thread waits in
    a library's call, for a message or for room, would not end that wait.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def wait() -> None:
        signal.sigwait([signal.SIGTERM])
        say_last()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def say_last() -> None:
    """What came of it all."""
    say(seen=seen, bad=bad, sent=sent, longest_gap_s=round(longest, 4))


def over_insane() -> None:
    """The only one of these that knows no address. Its waits see signals."""
    global sent
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with insane.Session("xApp in Python") as session:
        stream = session.stream("e2")
        source = stream.source("control")
        sink = stream.sink("indication")
        say(sink=sink.id, source=source.epoch)
        for message in insane.messages(sink):
            with memoryview(message) as view:
                reply = answer(view)
            if reply:
                source.send(reply)
                sent += 1
            message.release()


def over_sockets() -> None:
    """Datagrams over a Unix or a UDP socket."""
    global sent
    end_when_asked()
    unix = arguments.path == "unix"
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(str(arguments.dir / "xapp.sock") if unix else (arguments.address, 0))
        say(port=None if unix else peer.getsockname()[1])
        while True:
            data, back = peer.recvfrom(2048)
            reply = answer(memoryview(data))
            if reply:
                try:
                    peer.sendto(reply, back)
                    sent += 1
                except OSError:
                    # The link is cut. A datagram is lost then.
                    pass


def over_zeromq() -> None:
    """SUB for the indications, PUSH for the answers, over TCP."""
    global sent
    import zmq

    end_when_asked()
    context = zmq.Context()
    sink, source = context.socket(zmq.SUB), context.socket(zmq.PUSH)
    for each in (sink, source):
        each.linger = 0
    sink.subscribe(b"")
    port = sink.bind_to_random_port(f"tcp://{arguments.address}")
    back = source.bind_to_random_port(f"tcp://{arguments.address}")
    say(port=port, back=back, version=zmq.zmq_version())
    while True:
        reply = answer(memoryview(sink.recv()))
        if reply:
            source.send(reply)
            sent += 1


try:
    {"insane": over_insane, "unix": over_sockets, "udp": over_sockets, "zeromq": over_zeromq}[arguments.path]()
finally:
    say_last()
