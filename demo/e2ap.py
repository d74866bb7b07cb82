"""As much of E2AP (O-RAN.WG3.E2AP, aligned PER) as the demo's xApps need: which procedure, whose request, which number."""

from __future__ import annotations

from dataclasses import dataclass

RIC_CONTROL, RIC_INDICATION, RIC_INDICATION_SN, RIC_REQUEST_ID = 4, 5, 27, 29

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
    sn: int


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
    requestor = instance = None
    for _ in range(count):
        ie = data[at] << 8 | data[at + 1]
        length, value = _length(data, at + 3)
        if ie == RIC_REQUEST_ID and length == 5:
            requestor = data[value + 1] << 8 | data[value + 2]
            instance = data[value + 3] << 8 | data[value + 4]
        elif ie == RIC_INDICATION_SN and length == 2 and requestor is not None and instance is not None:
            return Pdu(procedure, requestor, instance, data[value] << 8 | data[value + 1])
        at = value + length
    raise ValueError("no RICrequestID, or no RICindicationSN after it")


def control(instance: int, sn: int) -> bytes:
    """The control request of an xApp, known by its instance, that answers indication `sn`.

    The number is in the RICcontrolHeader, whose content is the RAN function's own affair."""
    return b"%b%b%b%b%b" % (
        GOLDEN_CONTROL[:14],
        instance.to_bytes(2, "big"),
        GOLDEN_CONTROL[16:29],
        sn.to_bytes(2, "big"),
        GOLDEN_CONTROL[31:],
    )
