"""Messages of another host that are taken in the frames in which they came."""

import pathlib
from collections.abc import Callable

import insane

LARGE = 64 << 10
QOS = "acceleration=preferred,reliability=reliable"


def payload(number: int, size: int) -> bytes:
    return bytes((at * 31 + at // 251 + number * 7) & 0xFF for at in range(size))


def test_a_message_of_another_host_is_read_in_the_frames_in_which_it_came(cables: list[pathlib.Path]) -> None:
    with insane.Session("near", socket=cables[0]) as near, insane.Session("far", socket=cables[1]) as far:
        stream, other = (session.stream(qos=QOS) for session in (near, far))
        sink, source = other.sink("c", scattered=True), stream.source("c", message_bytes=LARGE, deadline=20)
        assert source.wait_for_sinks(1, 20) == 1

        def until(size: int, check: Callable[[insane.Message], bool]) -> None:
            # The first come before the session knows the interface's memory, and on a busy machine some go over UDP.
            for number in range(500):
                sent = payload(number, size)
                source.send(sent)
                with sink.consume(20) as message:
                    views = [memoryview(piece) for piece in message.pieces()]
                    assert b"".join(views) == sent and len(message) == size
                    assert all(view.readonly for view in views)
                    for view in views:
                        view.release()
                    if check(message):
                        return
            raise AssertionError(f"none came in its frames: {sink.copies} {stream.effective_qos()}")

        scattered = 0

        def in_frames(message: insane.Message) -> bool:
            nonlocal scattered
            count, before, scattered = len(message.pieces()), scattered, sink.copies.scattered
            assert count == 1 or (count >= 44 and scattered == before + 1 and message.copies == 0)
            return count > 1

        until(LARGE, in_frames)
        copies = sink.copies
        assert (copies.scattered, copies.here) == (1, 0) and copies.pieces >= 44

        def in_one_frame(message: insane.Message) -> bool:
            nonlocal scattered
            before, scattered = scattered, sink.copies.scattered
            assert len(message.pieces()) == 1
            with memoryview(message) as whole:
                assert len(whole) == 1400
            assert scattered == before or message.copies == 0
            return scattered > before

        until(1400, in_one_frame)
        assert sink.copies.here == 0, "as one it is where it is"

        def together(message: insane.Message) -> bool:
            if len(message.pieces()) == 1:
                return False
            with memoryview(message) as whole:
                assert len(whole) == LARGE
            return message.copies == 1

        until(LARGE, together)
        assert sink.copies.here == 1, "who asks for one place pays for it, once"
