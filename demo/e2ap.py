"""As much of E2AP (O-RAN.WG3.E2AP, aligned PER) as the demo's xApp needs: which procedure, and whose request."""

from __future__ import annotations

from dataclasses import dataclass

RIC_CONTROL, RIC_INDICATION, RIC_REQUEST_ID = 4, 5, 29

# RICcontrolRequest of RAN function 146, encoded by an independent implementation (pycrate).
GOLDEN_CONTROL = bytes.fromhex(
    "00040039000005001d00050003fd0000000500020092001600050400000000001700151402000000000000000100000005000000640000000015000140"
)


@dataclass
class Pdu:
    """The outer facts of a PDU."""

    procedure: int
    requestor: int
    instance: int


def _length(data: memoryview, at: int) -> tuple[int, int]:
    """A length determinant below 16384: its value, and where what follows begins."""
    first = data[at]
    if first < 0x80:
        return first, at + 1
    if first < 0xC0:
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    raise ValueError("a fragmented length is none of the demo's PDUs")


def decode(data: memoryview) -> Pdu:
    """Reads an initiating message; raises ValueError or IndexError when it is none."""
    if data[0] != 0x00:
        raise ValueError(f"choice {data[0]:#x} is no initiating message")
    procedure = data[1]
    length, at = _length(data, 3)
    if at + length > len(data):
        raise ValueError("the PDU is cut short")
    count = data[at + 1] << 8 | data[at + 2]
    at += 3
    for _ in range(count):
        ie = data[at] << 8 | data[at + 1]
        length, value = _length(data, at + 3)
        if ie == RIC_REQUEST_ID and length == 5:
            return Pdu(procedure, data[value + 1] << 8 | data[value + 2], data[value + 3] << 8 | data[value + 4])
        at = value + length
    raise ValueError("no RICrequestID")
