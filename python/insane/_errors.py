"""The exceptions: one for each range of the numbers that Rust, C and Python share."""

from __future__ import annotations


class InsaneError(Exception):
    """Anything that INSANE refuses: `number` and `code` are the same in every language."""

    def __init__(self, number: int, code: str, text: str) -> None:
        super().__init__(text)
        self.number = number
        self.code = code

    def __reduce__(self) -> tuple[type[InsaneError], tuple[int, str, str]]:
        """Crosses to other processes whole."""
        return type(self), (self.number, self.code, str(self))


class ConnectionFailed(InsaneError, ConnectionError):
    """Numbers 1 to 19: the runtime, the session, the operating system."""


class TimedOut(ConnectionFailed, TimeoutError):
    """The time allowed for a call ran out."""


class Closed(ConnectionFailed):
    """The session, stream, source or sink is closed."""


class InvalidArgument(InsaneError, ValueError):
    """Numbers 20 to 39: an argument has no meaning here."""


class Conflict(InsaneError):
    """Numbers 40 to 59: names and QoS."""


class NotAllowed(InsaneError, PermissionError):
    """Numbers 60 to 79: rights and quotas."""


class DataPathError(InsaneError):
    """Numbers 80 to 99: no buffer, a full sink, nothing there."""


def make(number: int, code: str, text: str) -> InsaneError:
    """Makes the exception of a number."""
    if code == "Timeout":
        return TimedOut(number, code, text)
    if code == "Closed":
        return Closed(number, code, text)
    for limit, kind in ((20, ConnectionFailed), (40, InvalidArgument), (60, Conflict), (80, NotAllowed)):
        if number < limit:
            return kind(number, code, text)
    return DataPathError(number, code, text)
