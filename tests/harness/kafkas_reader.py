"""Kafka's own reading of requests, by the classes of kafka-clients in a JVM."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from tests.harness.java_tools import java_options
from tests.harness.jvm_reader import JvmReader, jvm_reader

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

    def __init__(self, reader: JvmReader) -> None:
        self._reader = reader

    def read(self, messages: Sequence[bytes], *, known_only: bool = False) -> list[Reading]:
        """Return what Kafka makes of each message. With `known_only` it writes no tags that it does not
        know.
        """
        begin = bytes([known_only])
        return list(map(_reading, self._reader.ask([begin + message for message in messages])))


@contextmanager
def kafkas_reader() -> Iterator[KafkasReader]:
    with jvm_reader([*java_options(), "-Dlog4j2.level=OFF"], HARNESS) as reader:
        yield KafkasReader(reader)


def _reading(answer: bytes) -> Reading:
    if answer[0] != _IS_READ:
        return Reading(refusal=answer[1:].decode())
    return Reading(answer[1 + _SIZE.size :], _SIZE.unpack_from(answer, 1)[0])
