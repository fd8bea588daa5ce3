"""Kafka's own reading of requests, by the classes of kafka-clients in a JVM."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from threading import Thread
from typing import IO, NamedTuple

from embedded.java import find_java
from gateway.wire.framing import framed
from tests.harness.java_tools import java_options

HARNESS = Path(__file__).with_name("kafkas_reader.java")
_SIZE = Struct(">i")
_IS_READ = 0


class Reading(NamedTuple):
    """What Kafka makes of a request. `refusal` is its exception if it refuses the request.
    `written` is how Kafka writes what it has read, with the header; empty for unknown tags that it reads and
    cannot write. `unread` bytes follow the body.
    """

    written: bytes = b""
    unread: int = 0
    refusal: str = ""


class KafkasReader:
    """Kafka's reader. Requests are given many at a time."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def read(self, messages: Sequence[bytes], *, known_only: bool = False) -> list[Reading]:
        """Return what Kafka makes of each message. With `known_only` it writes no tags that it does not
        know.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        sending = Thread(target=_send, args=(self._process.stdin, messages, known_only))
        sending.start()
        readings = [_reading(self._process.stdout) for _ in messages]
        sending.join()
        return readings


@contextmanager
def kafkas_reader() -> Iterator[KafkasReader]:
    """Kafka's reader, until the block ends."""
    command = [str(find_java()), *java_options(), "-Dlog4j2.level=OFF", str(HARNESS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield KafkasReader(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _send(to: IO[bytes], messages: Sequence[bytes], known_only: bool) -> None:
    begin = bytes([known_only])
    to.write(b"".join([framed(begin + message) for message in messages]))
    to.flush()


def _reading(answers: IO[bytes]) -> Reading:
    (size,) = _SIZE.unpack(answers.read(_SIZE.size))
    answer = answers.read(size)
    if answer[0] != _IS_READ:
        return Reading(refusal=answer[1:].decode())
    return Reading(answer[1 + _SIZE.size :], _SIZE.unpack_from(answer, 1)[0])
