"""Reads requests and frames with the classes of Kafka and RocketMQ in a JVM."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from threading import Thread
from typing import IO, Any, NamedTuple

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import java_options, java_options_of

HARNESS = Path(__file__).with_name("kafkas_reader.java")
_SIZE = Struct(">i")
_IS_READ = 0


class JvmReader:
    """A running Java program that answers frames."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def ask(self, frames: Sequence[bytes]) -> list[bytes]:
        """Return the answer to each frame."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        sending = Thread(target=_send, args=(self._process.stdin, frames))
        sending.start()
        answers = [_receive(self._process.stdout) for _ in frames]
        sending.join()
        return answers


@contextmanager
def jvm_reader(options: Sequence[str], program: Path) -> Iterator[JvmReader]:
    """Run a program of one file, with these options of the JVM, until the block ends."""
    command = [str(find_java()), *options, str(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield JvmReader(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _send(stdin: IO[bytes], frames: Sequence[bytes]) -> None:
    stdin.write(b"".join([_SIZE.pack(len(frame)) + frame for frame in frames]))
    stdin.flush()


def _receive(answers: IO[bytes]) -> bytes:
    (size,) = _SIZE.unpack(answers.read(_SIZE.size))
    return answers.read(size)


class Reading(NamedTuple):
    """Kafka's reading of a request. `refusal` is its exception if it refuses the request.

    `written` is the request as Kafka encodes it again, with the header. It is empty for unknown tags, which
    Kafka can read but not write. `unread` is the number of bytes after the body.
    """

    written: bytes = b""
    unread: int = 0
    refusal: str = ""


class KafkasReader:
    """Reads requests with Kafka's classes."""

    def __init__(self, reader: JvmReader) -> None:
        self._reader = reader

    def read(self, messages: Sequence[bytes], *, known_only: bool = False) -> list[Reading]:
        """Return Kafka's reading of each message. With `known_only` it omits unknown tags when it writes."""
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


ROCKETMQ_PROGRAM = Path(__file__).with_name("rocketmqs_reader.java")
_ROCKETMQ_READ = b"0"


class RocketmqsReader:
    """Reads frames, given without their lengths, with RocketMQ's classes."""

    def __init__(self, reader: JvmReader) -> None:
        self._reader = reader

    def read(self, frames: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """Return for each frame its header, body and length of the body, or None if it is refused."""
        return [
            json.loads(answer[1:]) if answer[:1] == _ROCKETMQ_READ else None
            for answer in self._reader.ask(frames)
        ]


@contextmanager
def rocketmqs_reader() -> Iterator[RocketmqsReader]:
    """Yield RocketMQ's reader."""
    with jvm_reader(java_options_of(jar_paths("rocketmq")), ROCKETMQ_PROGRAM) as reader:
        yield RocketmqsReader(reader)
