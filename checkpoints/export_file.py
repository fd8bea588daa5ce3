"""The file of an exported state: what `group-coordinator state export` and `state backup` write, and
`state import` reads.

JSON, one object a line: the header, then one line a group, then the end with the number of groups and the
SHA-256 of all bytes before it. So a file that was cut or changed is refused as a whole. People can read the
header. The file has the secret `member_id_namespace`, so only its owner may read it.
"""

import os
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from checkpoints.metadata import Epoch, Identity, KnownOutage
from checkpoints.spark_logs import PlannedBatch

FORMAT_VERSION = 1
# A backup. Code that reads format 1 only would take it for the state of a stopped coordinator.
BACKUP_VERSION = 2

T = TypeVar("T")


class ExportError(RuntimeError):
    """A file is not a complete export that this code can read. The message names the file and the fault."""


class Header(Struct, frozen=True, kw_only=True):
    """An exported state without its groups.

    Batches are numbered anew: 0 is the last committed batch, 1 the planned one after it. `next_watermark_ms`
    is the watermark after the committed batch. `unread` is the number of requests in each partition of the
    requests topic that no committed batch has handled, None if it was not counted. `batch` is the number
    that the last committed batch had, None in exports of earlier versions. A backup (BACKUP_VERSION) was made
    while the coordinator may have run, so requests after it may be answered.
    """

    version: int = FORMAT_VERSION
    exported_at_ms: int
    code_version: str
    identity: Identity
    epochs: list[Epoch]
    outages: list[KnownOutage]
    committed: PlannedBatch
    next_watermark_ms: int
    planned: PlannedBatch | None
    unread: dict[int, int] | None = None
    batch: int | None = None

    @property
    def is_backup(self) -> bool:
        return self.version == BACKUP_VERSION


class ExportedGroup(Struct, frozen=True):
    """A group in the encoding of its own version (`checkpoints.codec.Entry`)."""

    group_id: str
    version: int
    group: bytes


class _Version(Struct):
    version: int


class _End(Struct, forbid_unknown_fields=True):
    groups: int
    sha256: str


def write_export(path: Path, header: Header, groups: Iterable[ExportedGroup]) -> int:
    """Write a new file and return its number of groups. Raises ExportError if it exists or is not writable.

    The file gets its name when it is complete.
    """
    if path.exists():
        raise ExportError(f"{path} exists")
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
            digest, count = sha256(), 0
            for line in _lines(header, groups):
                digest.update(line)
                file.write(line)
                count += 1
            file.write(_line(_End(count - 1, digest.hexdigest())))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count - 1


class ExportFile:
    """A complete export. The constructor reads the whole file once and raises ExportError if it is not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.header, self.group_count = self._check()
        except OSError as error:
            raise ExportError(f"{path} cannot be read: {error.strerror}") from error

    def groups(self) -> Iterator[ExportedGroup]:
        """Read the groups in the order of the file."""
        with self._path.open("rb") as file:
            file.readline()
            for _ in range(self.group_count):
                yield self._decode(file.readline(), ExportedGroup)

    def _check(self) -> tuple[Header, int]:
        """Return the header and the number of groups of a file that is complete and unchanged."""
        digest = sha256()
        with self._path.open("rb") as file:
            first = file.readline()
            version = self._decode(first, _Version).version
            if version not in (FORMAT_VERSION, BACKUP_VERSION):
                raise ExportError(
                    f"{self._path} is an export of format {version}; this code reads formats "
                    f"{FORMAT_VERSION} and {BACKUP_VERSION}"
                )
            header = self._decode(first, Header)
            line, count = first, 0
            for following in file:
                digest.update(line)
                line, count = following, count + 1
        if not count or b'"sha256"' not in line or not line.endswith(b"\n"):
            raise ExportError(f"{self._path} is cut: its last line is missing")
        end = self._decode(line, _End)
        if (end.groups, end.sha256) != (count - 1, digest.hexdigest()):
            raise ExportError(f"{self._path} does not match its checksum: it was changed or is damaged")
        return header, end.groups

    def _decode(self, line: bytes, of: type[T]) -> T:
        try:
            return msgspec.json.decode(line, type=of)
        except msgspec.DecodeError as error:
            raise ExportError(f"{self._path} is no export of a state, or is damaged: {error}") from error


def _lines(header: Header, groups: Iterable[ExportedGroup]) -> Iterator[bytes]:
    yield _line(header)
    for group in groups:
        yield _line(group)


def _line(content: Struct) -> bytes:
    return msgspec.json.encode(content) + b"\n"
