"""Files that are refused unless they are complete and unchanged: exports of the state, and recordings, which
`group-coordinator record` writes for a replay. JSON, one object per line: a header with its `version`, the
lines, and the end with the number of lines and the SHA-256 of all bytes before it. Both kinds contain the
secret `member_id_namespace`, so only the file's owner may read it.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, Generic, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from checkpoints import codec
from checkpoints.metadata import Epoch, Identity, KnownOutage
from checkpoints.spark_logs import PlannedBatch
from kafka_why.errors import UserFacingError
from kafka_why.local_files import sync
from state.dispatch import AnyGroup

COMPRESSED = ".zst"

H = TypeVar("H", bound=Struct)
T = TypeVar("T")


@dataclass(frozen=True)
class SealedFormat(Generic[H]):
    """A kind of sealed file."""

    header: type[H]
    end: type[Struct]  # has two fields: the number of lines, and `sha256`
    version: int  # the one that this code reads
    a_file: str  # the name of this kind in messages, with its article
    can_be_compressed: bool = False  # a file whose name ends with `.zst` is compressed with Zstandard

    def compresses(self, path: Path) -> bool:
        return self.can_be_compressed and path.suffix == COMPRESSED


class _HeaderVersion(Struct):
    """The field of a header that is read first, because it decides if the others can be read."""

    version: int


def write_sealed(path: Path, kind: SealedFormat[H], header: H, lines: Iterable[Struct]) -> int:
    """Write a new file and return its number of lines.

    The file appears at `path` only when it is complete. Raises UserFacingError if it exists or is not
    writable.
    """
    if path.exists():
        raise UserFacingError(f"{path} exists")
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            with _compressing(file, compressed=kind.compresses(path)) as stream:
                count = _write(stream, kind, header, lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync(path.parent)
    except OSError as error:
        raise UserFacingError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write(file: IO[bytes], kind: SealedFormat[H], header: H, lines: Iterable[Struct]) -> int:
    """Write the header, the lines and the end, and return the number of lines."""
    digest, count = sha256(), -1  # the header does not count as a line
    for content in chain[Struct]([header], lines):
        line = _encode(content)
        digest.update(line)
        file.write(line)
        count += 1
    file.write(_encode(kind.end(count, digest.hexdigest())))
    return count


class SealedFile(Generic[H]):
    """A complete file. The constructor reads it once, and raises UserFacingError if it is truncated, changed,
    or of another kind or format. The message names the file and the fault.
    """

    def __init__(self, path: Path, kind: SealedFormat[H]) -> None:
        self._path = path
        self._kind = kind
        try:
            self.header, self.line_count = self._check()
        except OSError as error:
            raise UserFacingError(f"{path} cannot be read: {error.strerror or error}") from error

    def lines(self) -> Iterator[bytes]:
        """Read the lines between the header and the end."""
        with self._open() as file:
            file.readline()
            for _ in range(self.line_count):
                yield file.readline()

    def decode(self, line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        """Decode a line. Raises UserFacingError."""
        try:
            return decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserFacingError(
                f"{self._path} is not {self._kind.a_file}, or is damaged: {error}"
            ) from error

    def _check(self) -> tuple[H, int]:
        """Return the header and the number of lines of a file that is complete and unchanged."""
        path, kind = self._path, self._kind
        digest = sha256()
        with self._open() as file:
            first = file.readline()
            version = self.decode(first, msgspec.json.Decoder(_HeaderVersion)).version
            if version != kind.version:
                raise UserFacingError(
                    f"{path} is {kind.a_file} of format {version}; this code reads format {kind.version}"
                )
            header = self.decode(first, msgspec.json.Decoder(kind.header))
            # The last line is neither in the digest nor in the count. The header is in the digest only.
            last_line, count = first, -1
            for line in file:
                digest.update(last_line)
                last_line, count = line, count + 1
        if count < 0 or b'"sha256"' not in last_line or not last_line.endswith(b"\n"):
            raise UserFacingError(f"{path} is cut: its last line is missing")
        if self.decode(last_line, msgspec.json.Decoder(kind.end)) != kind.end(count, digest.hexdigest()):
            raise UserFacingError(f"{path} does not match its checksum: it was changed or is damaged")
        return header, count

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """Open the file to read it from its start, decompressed."""
        with self._path.open("rb") as file:
            if not self._kind.compresses(self._path):
                yield file
                return
            with BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")) as decompressed:
                yield decompressed


@contextmanager
def _compressing(file: IO[bytes], *, compressed: bool) -> Iterator[IO[bytes]]:
    """Yield a stream that compresses into `file`, or `file` itself if not `compressed`."""
    if not compressed:
        yield file
        return
    # The stream closes the file that it writes to, so it gets a duplicate. The caller still syncs `file`.
    duplicate = os.fdopen(os.dup(file.fileno()), "wb")
    with pa.CompressedOutputStream(pa.PythonFile(duplicate, "w"), "zstd") as stream:
        yield stream


def _encode(content: Struct) -> bytes:
    return msgspec.json.encode(content) + b"\n"


# The file of an exported state, which `group-coordinator state export` and `state backup` write, and `state
# import` reads. A sealed file (`checkpoints.sealed_file`) with one line per group.


FORMAT_VERSION = 1


class ExportHeader(Struct, frozen=True, kw_only=True):
    """An exported state without its groups.

    Batches are renumbered: 0 is the last committed batch, 1 the planned one after it.
    """

    version: int = FORMAT_VERSION
    exported_at_ms: int
    code_version: str
    identity: Identity
    epochs: list[Epoch]
    outages: list[KnownOutage]
    committed: PlannedBatch  # the plan of the last committed batch
    next_watermark_ms: int  # after the committed batch
    planned: PlannedBatch | None  # the batch after it, None if that was not planned yet
    unread: dict[int, int] | None = None  # number of requests, by partition, that no committed batch handled
    batch: int  # the original number of the last committed batch
    is_backup: bool = False  # exported while the coordinator may have run and answered later requests


class ExportedGroup(Struct, frozen=True):
    """A group as it was stored (`checkpoints.codec.StoredGroup`), without its next deadline."""

    group_id: str
    version: int  # of the encoding
    group: bytes

    def decode(self) -> AnyGroup:
        """Return the group. Raises StateError if it is not readable."""
        return codec.decode_group(self.group_id, codec.StoredGroup(self.version, None, self.group))


class _End(Struct, forbid_unknown_fields=True):
    """The last line of an export."""

    groups: int  # the number of lines between the header and this one
    sha256: str


_EXPORT = SealedFormat(
    header=ExportHeader,
    end=_End,
    version=FORMAT_VERSION,
    a_file="an export",
)
_group = msgspec.json.Decoder(ExportedGroup)


def write_export(path: Path, header: ExportHeader, groups: Iterable[ExportedGroup]) -> int:
    """Write a new file and return its number of groups.

    The file appears at `path` only when it is complete. Raises UserFacingError if it exists or is not
    writable.
    """
    return write_sealed(path, _EXPORT, header, groups)


class ExportFile(SealedFile[ExportHeader]):
    """A complete export."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _EXPORT)

    def groups(self) -> Iterator[ExportedGroup]:
        """Read the groups in the order of the file."""
        return (self.decode(line, _group) for line in self.lines())
