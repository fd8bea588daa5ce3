"""RocketMQ's own reading of frames, by its classes in a JVM."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from embedded.jars import jar_paths
from tests.harness.java_tools import java_options_of
from tests.harness.jvm_reader import JvmReader, jvm_reader

HARNESS = Path(__file__).with_name("rocketmqs_reader.java")
_IS_READ = b"0"


class RocketmqsReader:
    """RocketMQ's reader. Frames are given many at a time, without their lengths."""

    def __init__(self, reader: JvmReader) -> None:
        self._reader = reader

    def read(self, frames: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """Return the header, the body and the length of the body of each frame, None if it is refused."""
        return [
            json.loads(answer[1:]) if answer[:1] == _IS_READ else None for answer in self._reader.ask(frames)
        ]


@contextmanager
def rocketmqs_reader() -> Iterator[RocketmqsReader]:
    """Yield RocketMQ's reader."""
    with jvm_reader(java_options_of(jar_paths("rocketmq")), HARNESS) as reader:
        yield RocketmqsReader(reader)
