"""The file of an exported state, which `group-coordinator state export` and `state backup` write, and `state
import` reads. A sealed file (`checkpoints.sealed_file`) with one line per group.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from checkpoints import codec
from checkpoints.metadata import Epoch, Identity, KnownOutage
from checkpoints.sealed_file import SealedFile, SealedFormat, write_sealed
from checkpoints.spark_logs import PlannedBatch
from state.dispatch import AnyGroup

FORMAT_VERSION = 1


class ExportError(RuntimeError):
    """A file is not a complete, readable export. The message names the file and the fault."""


class ExportHeader(Struct, frozen=True, kw_only=True):
    """An exported state without its groups. Batches are renumbered: 0 is the last committed batch, 1 the
    planned one after it. `next_watermark_ms` is the watermark after the committed batch. `unread` is the
    number of requests, by partition, that no committed batch has handled, None if not counted. `batch` is the
    last committed batch's original number. If `is_backup`, the coordinator may have been running, so later
    requests may be answered.
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
    batch: int
    is_backup: bool = False


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
    """Write a new file and return its number of groups. Raises ExportError if it exists or is not writable.
    An incomplete file never has this name.
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
