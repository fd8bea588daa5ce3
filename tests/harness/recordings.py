"""Recordings in memory."""

from collections.abc import Iterable, Iterator, Sequence

from checkpoints.sealed_file import ExportedGroup
from operations.replay.recording import Line, LogLine, OutputLine, RecordingHeader, StartLine


class Lines:
    """A recording in memory."""

    def __init__(self, header: RecordingHeader, lines: Iterable[Line]) -> None:
        self.header = header
        self.lines: Sequence[Line] = list(lines)

    def states(self) -> Iterator[ExportedGroup]:
        return (line.group for line in self.lines if isinstance(line, StartLine))

    def log(self) -> Iterator[LogLine]:
        return (line for line in self.lines if isinstance(line, LogLine))

    def outputs(self) -> Iterator[OutputLine]:
        return (line for line in self.lines if isinstance(line, OutputLine))
