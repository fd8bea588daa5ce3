"""The data of the files next to Spark's checkpoint, and their storage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from kafka_why.contract.messages import SettingValue
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.protocol import Outage


class CommittedBatch(Struct, frozen=True):
    """A committed batch."""

    batch: int
    ends: dict[int, int]  # the offsets after the last records that it has read, by partition


class Moved(Struct, frozen=True):
    """The origin of an imported state: the folder of `from_owner_id`, exported at `exported_at_ms`.

    An owner id names the state of a folder in claims on the topics (`streaming.service.ownership.owner`).
    `owner_id` is that of the new folder.
    """

    owner_id: str
    from_owner_id: str
    exported_at_ms: int


class Identity(Struct, frozen=True):
    """The cluster and topic of the state, and the numbers by which its groups are placed. A shard is the set
    of groups that share one key of Spark's state.
    """

    cluster_id: str
    requests_topic: str
    requests_topic_id: str  # "" until the first start on this state
    request_partitions: int
    member_id_namespace: str  # secret: it determines member ids
    shards: int  # number of shards of each requests partition
    moved: Moved | None = None  # set if the state was imported
    state_partitions: int = 1  # number of partitions of Spark's state


class Epoch(Struct, frozen=True):
    """A configuration, and the first batch that uses it.

    The configuration is in force after `after_ms`, until the `after_ms` of the next epoch. The first epoch's
    configuration is also in force before its `after_ms`. `settings` are by Kafka's dotted names. `skip` are
    the ids of all records that batches from `from_batch` on write to the dead letters without decoding them.
    """

    from_batch: int
    settings: Mapping[str, SettingValue]
    skip: list[str]
    code_version: str
    after_ms: int = 0


def configs_of(epochs: Sequence[Epoch], base: CoordinatorConfig) -> Configs:
    """Return the configurations of these epochs by time, or only `base` if there are no epochs. Each is
    `base` with the settings of its epoch.
    """
    changes = [ConfigChange(e.after_ms, base.with_settings(e.settings)) for e in epochs]
    return Configs(changes[0].config if changes else base, changes[1:])


class KnownOutage(Struct, frozen=True):
    """An outage, a span of time without a coordinator, and the first batch to which it applies."""

    from_batch: int
    outage: Outage


class OwnerRecord(Struct, frozen=True):
    """The data of one owner of the topics, including those of earlier owners."""

    epochs: list[Epoch] = field(default_factory=list)  # all configurations so far
    outages: list[KnownOutage] = field(default_factory=list)  # the last outages so far
    committed: CommittedBatch | None = None  # the last batch known to be committed, None if none is


# Storage for files that must outlive a coordinator's machine: a local folder, or one of a Hadoop file
# system (`streaming.query.storage`). Names are relative to the folder, with "/" between parts.


class Files(Protocol):
    """A folder for files. Its errors are FolderErrors, except for the FileNotFoundError of `read`."""

    @property
    def uri(self) -> str:
        """The folder's URI, in the form that Spark accepts."""

    @property
    def local_path(self) -> Path | None:
        """The folder as a path of this machine, None if it is remote."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError, FolderError."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file durably. If the process crashes in this call, the folder has the old or
        the new file. Raises FolderNotWritable.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Write a file and return True, or return False if it exists. Raises FolderNotWritable.

        If several machines create the file at the same time, only one succeeds. Object stores do not
        guarantee that.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, an empty list if the folder does not exist."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises FolderNotWritable."""
