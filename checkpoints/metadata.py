"""The data of the files next to Spark's checkpoint, and their storage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from kafka_why.contract.messages import SettingValue
from kafka_why.local_files import FolderError
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.protocol import Outage


class CommittedBatch(Struct, frozen=True):
    """A committed batch. `ends` are the offsets after the last records it read, by partition."""

    batch: int
    ends: dict[int, int]


class Moved(Struct, frozen=True):
    """The origin of an imported state: the folder of `from_owner_id`, exported at `exported_at_ms`.
    `owner_id` is the new folder's id (`streaming.service.ownership.owner`).
    """

    owner_id: str
    from_owner_id: str
    exported_at_ms: int


class Identity(Struct, frozen=True):
    """The cluster and topic of the state."""

    cluster_id: str
    requests_topic: str
    requests_topic_id: str  # "" until the first start on this state
    request_partitions: int
    member_id_namespace: str  # secret: it determines member ids
    shards: int  # of each partition
    moved: Moved | None = None  # set if the state was imported
    state_partitions: int = 1  # in which Spark keeps the state


class Epoch(Struct, frozen=True):
    """A configuration, and the first batch that uses it.

    It is in force after `after_ms`, until the `after_ms` of the next epoch. The first epoch is in force
    before, too. `settings` are by Kafka's dotted names. `skip` are ids of records that are dead-lettered
    unread from the batch on: those of earlier epochs, and new ones.
    """

    from_batch: int
    settings: Mapping[str, SettingValue]
    skip: list[str]
    code_version: str
    after_ms: int = 0


def configs_of(epochs: Sequence[Epoch], base: CoordinatorConfig) -> Configs:
    """Return the configurations of these epochs by time. `base` has the values that are not settings, and is
    the only configuration without epochs.
    """
    changes = [ConfigChange(e.after_ms, base.with_settings(e.settings)) for e in epochs]
    return Configs(changes[0].config if changes else base, changes[1:])


class KnownOutage(Struct, frozen=True):
    """An outage, and the first batch that uses it."""

    from_batch: int
    outage: Outage


class OwnerRecord(Struct, frozen=True):
    """The data of one owner of the topics: the configurations and outages so far.

    `committed` is the last batch known to be committed, if any.
    """

    epochs: list[Epoch] = field(default_factory=list)
    outages: list[KnownOutage] = field(default_factory=list)
    committed: CommittedBatch | None = None


# Storage for files that must outlive a coordinator's machine: a local folder, or one of a Hadoop file
# system (`streaming.query.storage`). Names are relative to the folder, with "/" between parts.


class Files(Protocol):
    """A folder for files. Its errors are FolderErrors."""

    @property
    def uri(self) -> str:
        """The folder's URI, in the form that Spark accepts."""

    @property
    def local(self) -> Path | None:
        """The folder as a path of this machine, None if it is remote."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError, FolderError."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file durably. After a crash meanwhile, the folder has the old or the new file.
        Raises FolderNotWritable.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Write a file and return True, or return False if it exists. Raises FolderNotWritable.

        If several machines do this at once, one succeeds. Object stores do not guarantee that.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, an empty list if the folder does not exist."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises FolderNotWritable."""


# The two logs of Spark's checkpoint: `offsets/N` is the plan of batch N, `commits/N` exists once it is
# committed.


SPARK = "spark"
_WATERMARK, _TIMESTAMP, _NEXT_WATERMARK = "batchWatermarkMs", "batchTimestampMs", "nextBatchWatermarkMs"
_METADATA_LINE, _SOURCE_LINE = 1, 2
_NO_OFFSETS = b"-"  # the line of a source that has no offsets yet
_UNREADABLE = (LookupError, ValueError, msgspec.DecodeError)


_MEND = "'group-coordinator state rollback' repairs it (docs/recovery.md, 'A damaged checkpoint')"


class SparkLogDamaged(FolderError):
    """A file of Spark's logs cannot be read. The message names it."""


class PlannedBatch(Struct, frozen=True):
    """The plan of a batch: read up to the offsets `ends` (exclusive) by partition, under this watermark.

    `timestamp_ms` is the time of Spark's plan.
    """

    ends: dict[int, int]
    watermark_ms: int
    timestamp_ms: int


def last_batch(files: Files, log: str) -> int:
    """Return the last batch in Spark's `offsets` (planned) or `commits` (committed) log, -1 if it is
    empty.
    """
    names = files.names(f"{SPARK}/{log}")
    return max((int(name) for name in names if name.isdigit()), default=-1)


def planned_ends(files: Files, batch: int) -> dict[str, dict[int, int]]:
    """Return the offsets, by topic and partition, up to which (exclusive) a batch reads.

    The result is empty if the batch is not planned. Raises SparkLogDamaged.
    """
    name = f"{SPARK}/offsets/{batch}"
    try:
        first, *others = files.read(name).splitlines()[_SOURCE_LINE:]
        ends: dict[str, dict[int, int]] = {}
        for line in (first, *others):
            if line != _NO_OFFSETS:
                ends |= msgspec.json.decode(line, type=dict[str, dict[int, int]])
    except FileNotFoundError:
        return {}
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_MEND}") from error
    return ends


def read_planned(files: Files, batch: int, topic: str) -> PlannedBatch:
    """Read the plan of a batch of the coordinator's query. Raises FileNotFoundError if the batch is not
    planned, and SparkLogDamaged.
    """
    name = f"{SPARK}/offsets/{batch}"
    try:
        lines = files.read(name).splitlines()
        metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
        ends = msgspec.json.decode(lines[_SOURCE_LINE], type=dict[str, dict[int, int]])
        return PlannedBatch(ends[topic], int(metadata[_WATERMARK]), int(metadata[_TIMESTAMP]))
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_MEND}") from error


def read_next_watermark_ms(files: Files, batch: int) -> int:
    """Read the watermark after a committed batch, in ms. Raises FileNotFoundError, SparkLogDamaged."""
    name = f"{SPARK}/commits/{batch}"
    try:
        return int(_commit(files, name)[1][_NEXT_WATERMARK])
    except _UNREADABLE as error:
        raise SparkLogDamaged(f"{files.uri}/{name} is damaged: {error!r}. {_MEND}") from error


def rewrite_planned(files: Files, batch: int, planned: PlannedBatch, topic: str) -> None:
    """Write a batch's plan for a topic. The version and Spark's settings are those of batch 0."""
    content = encode_planned(planned, topic, files.read(f"{SPARK}/offsets/0"))
    files.write(f"{SPARK}/offsets/{batch}", content)


def encode_planned(planned: PlannedBatch, topic: str, like: bytes) -> bytes:
    """Return the content of a file in Spark's folder `offsets`.

    The version and Spark's settings are those of `like`, the content of another such file.
    """
    lines = like.splitlines()
    metadata = msgspec.json.decode(lines[_METADATA_LINE], type=dict[str, Any])
    metadata |= {_WATERMARK: planned.watermark_ms, _TIMESTAMP: planned.timestamp_ms}
    source = msgspec.json.encode({topic: planned.ends})
    return b"\n".join([lines[0], msgspec.json.encode(metadata), source])


def rewrite_next_watermark_ms(files: Files, batch: int, watermark_ms: int) -> None:
    """Change the watermark after a committed batch."""
    name = f"{SPARK}/commits/{batch}"
    version, commit = _commit(files, name)
    commit |= {_NEXT_WATERMARK: watermark_ms}
    files.write(name, b"\n".join([version, msgspec.json.encode(commit)]))


def _commit(files: Files, name: str) -> tuple[bytes, dict[str, Any]]:
    version, content = files.read(name).splitlines()[:2]
    return version, msgspec.json.decode(content, type=dict[str, Any])
