"""A Java program that answers frames on its input with frames on its output, one each."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from threading import Thread
from typing import IO

from embedded.java import find_java

_SIZE = Struct(">i")


class JvmReader:
    """The running program. Frames are given many at a time."""

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


def _send(to: IO[bytes], frames: Sequence[bytes]) -> None:
    to.write(b"".join([_SIZE.pack(len(frame)) + frame for frame in frames]))
    to.flush()


def _receive(answers: IO[bytes]) -> bytes:
    (size,) = _SIZE.unpack(answers.read(_SIZE.size))
    return answers.read(size)
