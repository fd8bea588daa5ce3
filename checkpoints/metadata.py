"""The data of the files next to Spark's checkpoint, and their storage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from kafka_why.contract.messages import SettingValue
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
