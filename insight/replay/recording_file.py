"""The file of a recording: what `group-coordinator record` writes.

JSON, one object a line: the header, the lines of `insight.replay.recording`, and the end with the number of
lines and the SHA-256 of all bytes before it. So a file that was cut or changed is refused as a whole. A file
whose name ends with `.zst` is compressed with Zstandard. The file has the secret `member_id_namespace`, so
only its owner may read it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import IO, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from checkpoints.export_file import ExportedGroup
from insight.replay.recording import FORMAT_VERSION, Header, Line, LogLine, OutputLine, StartGroup

COMPRESSED = ".zst"
T = TypeVar("T")

_line: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class RecordingError(RuntimeError):
    """A file is not a complete recording that this code can read, or cannot be written."""


class _Version(Struct):
    version: int


class _End(Struct, forbid_unknown_fields=True):
    lines: int
    sha256: str


def write_recording(path: Path, header: Header, lines: Iterable[Line]) -> int:
    """Write a new file and return its number of lines. Raises RecordingError if it exists or is not writable.

    The file gets its name when it is complete. `lines` are in the order of the types of
    `insight.replay.recording`: states, log, outputs.
    """
    if path.exists():
        raise RecordingError(f"{path} exists")
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            with _compressing(file, path) as written:
                count = _write(written, header, lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write(file: IO[bytes], header: Header, lines: Iterable[Line]) -> int:
    digest, count = sha256(), 0
    for content in (header, *()), lines:
        for line in content:
            encoded = msgspec.json.encode(line) + b"\n"
            digest.update(encoded)
            file.write(encoded)
            count += 1
    file.write(msgspec.json.encode(_End(count - 1, digest.hexdigest())) + b"\n")
    return count - 1


class RecordingFile:
    """A complete recording. The constructor reads the whole file once; it raises RecordingError if the file
    is cut, changed, or of another format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.header, self._count = self._check()
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from error

    def states(self) -> Iterator[ExportedGroup]:
        return (line.group for line in self._lines("group") if isinstance(line, StartGroup))

    def log(self) -> Iterator[LogLine]:
        return (line for line in self._lines("request", "clock") if isinstance(line, LogLine))

    def outputs(self) -> Iterator[OutputLine]:
        kinds = "answer", "event", "dead letter", "view"
        return (line for line in self._lines(*kinds) if isinstance(line, OutputLine))

    def _lines(self, *kinds: str) -> Iterator[Line]:
        """The lines of these kinds. The kind comes first in a line, so other lines need not be decoded."""
        wanted = tuple(f'{{"line":"{kind}"'.encode() for kind in kinds)
        with _opened(self.path) as file:
            file.readline()
            for _ in range(self._count):
                line = file.readline()
                if line.startswith(wanted):
                    yield self._decode(line, _line)

    def _check(self) -> tuple[Header, int]:
        """Return the header and the number of lines of a file that is complete and unchanged."""
        digest = sha256()
        with _opened(self.path) as file:
            first = file.readline()
            version = self._decode(first, msgspec.json.Decoder(_Version)).version
            if version != FORMAT_VERSION:
                raise RecordingError(
                    f"{self.path} is a recording of format {version}; this code reads format {FORMAT_VERSION}"
                )
            header = self._decode(first, msgspec.json.Decoder(Header))
            line, count = first, 0
            for following in file:
                digest.update(line)
                line, count = following, count + 1
        if not count or b'"sha256"' not in line or not line.endswith(b"\n"):
            raise RecordingError(f"{self.path} is cut: its last line is missing")
        end = self._decode(line, msgspec.json.Decoder(_End))
        if (end.lines, end.sha256) != (count - 1, digest.hexdigest()):
            raise RecordingError(f"{self.path} does not match its checksum: it was changed or is damaged")
        return header, end.lines

    def _decode(self, line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return decoder.decode(line)
        except msgspec.DecodeError as error:
            raise RecordingError(f"{self.path} is no recording, or is damaged: {error}") from error


@contextmanager
def _compressing(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != COMPRESSED:
        yield file
        return
    # The stream closes its file, which has to be synced afterwards.
    own = os.fdopen(os.dup(file.fileno()), "wb")
    with pa.CompressedOutputStream(pa.PythonFile(own, "w"), "zstd") as written:
        yield written


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        if path.suffix != COMPRESSED:
            yield file
            return
        with BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")) as read:
            yield read
