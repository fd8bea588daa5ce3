"""The file of a recording: what `group-coordinator record` writes.

A sealed file (`checkpoints.sealed_file`) with the lines of `operations.replay.recording`. A file whose name
ends with `.zst` is compressed with Zstandard.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from checkpoints.export_file import ExportedGroup
from checkpoints.sealed_file import SealedFile, SealedFormat, write_sealed
from operations.replay.recording import FORMAT_VERSION, Line, LogLine, OutputLine, RecordingHeader, StartLine


class RecordingError(RuntimeError):
    """A file is not a complete recording that this code can read, or cannot be written."""


class _End(Struct, forbid_unknown_fields=True):
    lines: int
    sha256: str


_RECORDING = SealedFormat(
    header=RecordingHeader,
    end=_End,
    version=FORMAT_VERSION,
    error=RecordingError,
    a_file="a recording",
    can_be_compressed=True,
)
_line: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def write_recording(path: Path, header: RecordingHeader, lines: Iterable[Line]) -> int:
    """Write a new file and return its number of lines. Raises RecordingError if it exists or is not writable.

    The file gets its name when it is complete. `lines` are in the order of the types of
    `operations.replay.recording`: states, log, outputs.
    """
    return write_sealed(path, _RECORDING, header, lines)


class RecordingFile:
    """A complete recording. The constructor reads the whole file once; it raises RecordingError if the file
    is cut, changed, or of another format.
    """

    def __init__(self, path: Path) -> None:
        self._file = SealedFile(path, _RECORDING)
        self.header = self._file.header

    def states(self) -> Iterator[ExportedGroup]:
        return (line.group for line in self._lines("group") if isinstance(line, StartLine))

    def log(self) -> Iterator[LogLine]:
        return (line for line in self._lines("request", "clock") if isinstance(line, LogLine))

    def outputs(self) -> Iterator[OutputLine]:
        kinds = "answer", "event", "dead letter", "view"
        return (line for line in self._lines(*kinds) if isinstance(line, OutputLine))

    def _lines(self, *kinds: str) -> Iterator[Line]:
        """Yield the lines of these kinds. The kind comes first in a line, so other lines need not
        be decoded.
        """
        wanted = tuple(f'{{"line":"{kind}"'.encode() for kind in kinds)
        for line in self._file.lines():
            if line.startswith(wanted):
                yield self._file.decode(line, _line)
