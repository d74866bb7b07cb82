"""The demo's xApp in Python: decodes each E2 indication and answers it with a control request."""

import argparse
import json
import signal
import socket
import sys
from pathlib import Path

import e2ap
import insane

parser = argparse.ArgumentParser()
parser.add_argument("--path", choices=["insane", "unix", "udp"], default="insane")
parser.add_argument("--dir", type=Path, default=Path())
arguments = parser.parse_args()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

seen = bad = 0
try:
    if arguments.path == "insane":
        with insane.Session("xApp in Python") as session:
            stream = session.stream("e2")
            source = stream.source("control")
            sink = stream.sink("indication")
            print(json.dumps({"sink": sink.id}), flush=True)
            for message in insane.messages(sink):
                with memoryview(message) as view:
                    pdu = e2ap.decode(view)
                if pdu.procedure == e2ap.RIC_INDICATION and pdu.requestor == 1021:
                    source.send(e2ap.GOLDEN_CONTROL)
                else:
                    bad += 1
                message.release()
                seen += 1
    else:
        family = socket.AF_UNIX if arguments.path == "unix" else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as peer:
            peer.bind(str(arguments.dir / "xapp.sock") if arguments.path == "unix" else ("127.0.0.1", 0))
            print(json.dumps({"port": 0 if arguments.path == "unix" else peer.getsockname()[1]}), flush=True)
            while True:
                data, back = peer.recvfrom(2048)
                pdu = e2ap.decode(memoryview(data))
                if pdu.procedure == e2ap.RIC_INDICATION and pdu.requestor == 1021:
                    peer.sendto(e2ap.GOLDEN_CONTROL, back)
                else:
                    bad += 1
                seen += 1
finally:
    print(json.dumps({"seen": seen, "bad": bad}), flush=True)
