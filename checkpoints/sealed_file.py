"""Files that are refused unless they are complete and unchanged: exports of the state, and recordings. JSON,
one object per line: a header with its `version`, the lines, and the end with the number of lines and the
SHA-256 of all bytes before it. Both kinds have the secret `member_id_namespace`, so only the file's owner may
read it.
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
from kafka_why.local_files import sync
from state.dispatch import AnyGroup

COMPRESSED = ".zst"

H = TypeVar("H", bound=Struct)
T = TypeVar("T")


@dataclass(frozen=True)
class SealedFormat(Generic[H]):
    """A kind of sealed file.

    `version` is the format that this code reads. `end` has two fields: the number of lines, and `sha256`.
    `error` is raised with a message that names the file and the fault, and in which `a_file` means a file of
    this kind. If `can_be_compressed`, a file whose name ends with `.zst` is compressed with Zstandard.
    """

    header: type[H]
    end: type[Struct]
    version: int
    error: type[RuntimeError]
    a_file: str
    can_be_compressed: bool = False

    def compresses(self, path: Path) -> bool:
        return self.can_be_compressed and path.suffix == COMPRESSED


class _Version(Struct):
    version: int


def write_sealed(path: Path, kind: SealedFormat[H], header: H, lines: Iterable[Struct]) -> int:
    """Write a new file and return its number of lines. Raises `kind.error` if it exists or is not writable.

    An incomplete file never has this name.
    """
    if path.exists():
        raise kind.error(f"{path} exists")
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            with _compressing(file, compressed=kind.compresses(path)) as written:
                count = _write(written, kind, header, lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync(path.parent)
    except OSError as error:
        raise kind.error(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _write(file: IO[bytes], kind: SealedFormat[H], header: H, lines: Iterable[Struct]) -> int:
    digest, count = sha256(), -1  # the header does not count as a line
    for content in chain[Struct]([header], lines):
        line = _encode(content)
        digest.update(line)
        file.write(line)
        count += 1
    file.write(_encode(kind.end(count, digest.hexdigest())))
    return count


class SealedFile(Generic[H]):
    """A complete file. The constructor reads it once, and raises `kind.error` if it is truncated, changed, or
    of another kind or format.
    """

    def __init__(self, path: Path, kind: SealedFormat[H]) -> None:
        self._path = path
        self._kind = kind
        try:
            self.header, self.line_count = self._check()
        except OSError as error:
            raise kind.error(f"{path} cannot be read: {error.strerror or error}") from error

    def lines(self) -> Iterator[bytes]:
        """Read the lines between the header and the end."""
        with self._opened() as file:
            file.readline()
            for _ in range(self.line_count):
                yield file.readline()

    def decode(self, line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
        try:
            return decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._kind.error(
                f"{self._path} is not {self._kind.a_file}, or is damaged: {error}"
            ) from error

    def _check(self) -> tuple[H, int]:
        """Return the header and the number of lines of a file that is complete and unchanged."""
        path, kind = self._path, self._kind
        digest = sha256()
        with self._opened() as file:
            first = file.readline()
            version = self.decode(first, msgspec.json.Decoder(_Version)).version
            if version != kind.version:
                raise kind.error(
                    f"{path} is {kind.a_file} of format {version}; this code reads format {kind.version}"
                )
            header = self.decode(first, msgspec.json.Decoder(kind.header))
            line, count = first, -1
            for following in file:
                digest.update(line)
                line, count = following, count + 1
        if count < 0 or b'"sha256"' not in line or not line.endswith(b"\n"):
            raise kind.error(f"{path} is cut: its last line is missing")
        if self.decode(line, msgspec.json.Decoder(kind.end)) != kind.end(count, digest.hexdigest()):
            raise kind.error(f"{path} does not match its checksum: it was changed or is damaged")
        return header, count

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        with self._path.open("rb") as file:
            if not self._kind.compresses(self._path):
                yield file
                return
            with BufferedReader(pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")) as read:
                yield read


@contextmanager
def _compressing(file: IO[bytes], *, compressed: bool) -> Iterator[IO[bytes]]:
    if not compressed:
        yield file
        return
    # The stream closes its file, which has to be synced afterwards.
    own = os.fdopen(os.dup(file.fileno()), "wb")
    with pa.CompressedOutputStream(pa.PythonFile(own, "w"), "zstd") as written:
        yield written


def _encode(content: Struct) -> bytes:
    return msgspec.json.encode(content) + b"\n"


# The file of an exported state, which `group-coordinator state export` and `state backup` write, and `state
# import` reads. A sealed file (`checkpoints.sealed_file`) with one line per group.


FORMAT_VERSION = 1


class ExportError(RuntimeError):
    """A file is not a complete, readable export. The message names the file and the fault."""


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
    committed: PlannedBatch
    next_watermark_ms: int  # after the committed batch
    planned: PlannedBatch | None
    unread: dict[int, int] | None = None  # requests by partition that no committed batch has handled
    batch: int  # the original number of the last committed batch
    is_backup: bool = False  # the coordinator may have run, so later requests may be answered


class ExportedGroup(Struct, frozen=True):
    """A group in the encoding of its own version (`checkpoints.codec.StoredGroup`)."""

    group_id: str
    version: int
    group: bytes

    def decode(self) -> AnyGroup:
        """Return the group. Raises StateError if it is not readable."""
        return codec.decode_group(self.group_id, codec.StoredGroup(self.version, None, self.group))


class _End(Struct, forbid_unknown_fields=True):
    groups: int
    sha256: str


_EXPORT = SealedFormat(
    header=ExportHeader,
    end=_End,
    version=FORMAT_VERSION,
    error=ExportError,
    a_file="an export",
)
_group = msgspec.json.Decoder(ExportedGroup)


def write_export(path: Path, header: ExportHeader, groups: Iterable[ExportedGroup]) -> int:
    """Write a new file and return its number of groups.

    An incomplete file never has this name. Raises ExportError if it exists or is not writable.
    """
    return write_sealed(path, _EXPORT, header, groups)


class ExportFile:
    """A complete export. The constructor reads the whole file once, and raises ExportError if it is
    incomplete.
    """

    def __init__(self, path: Path) -> None:
        self._file = SealedFile(path, _EXPORT)
        self.header = self._file.header
        self.group_count = self._file.line_count

    def groups(self) -> Iterator[ExportedGroup]:
        """Read the groups in the order of the file."""
        return (self._file.decode(line, _group) for line in self._file.lines())
