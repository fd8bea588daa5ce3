"""What a coordinator knows besides the groups: the data of the files beside Spark's checkpoint."""

from collections.abc import Mapping

from msgspec import Struct, field

from state.config import SettingValue
from state.inputs import Outage


class Committed(Struct, frozen=True):
    """A committed batch. `ends`: the offset after the last record it read, by partition."""

    batch: int
    ends: dict[int, int]


class Moved(Struct, frozen=True):
    """How a state came into its folder: from the folder of `from_owner_id`, exported at `exported_at_ms`.

    `owner_id` is the new folder's own (`streaming.service.owner`).
    """

    owner_id: str
    from_owner_id: str
    exported_at_ms: int


class Identity(Struct, frozen=True):
    """The cluster and topic of the state. `member_id_namespace` is secret: it determines member ids.

    `requests_topic_id` is "" if the first start on this state has to pin it. `shards` is the number of shards
    of a partition, None if a version without shards wrote the state. `moved` is set if it was imported.
    `state_partitions` is the number of partitions in which Spark keeps the state.
    """

    cluster_id: str
    requests_topic: str
    requests_topic_id: str
    request_partitions: int
    member_id_namespace: str
    shards: int | None = None
    moved: Moved | None = None
    state_partitions: int = 1


class LogPlace(Struct, frozen=True):
    """The place in the log at which a batch begins: the offsets of its first records by partition, and the
    watermark up to which the batch before it fired deadlines.
    """

    topic: str
    offsets: dict[int, int]
    watermark_ms: int


class Epoch(Struct, frozen=True):
    """A configuration and its first batch. A batch that runs again uses the configuration of its first run.

    `settings` are by Kafka's dotted names. `skip` are ids of records that are dead-lettered unread. `begins`
    is the place of its first batch. None: the batch is the first of all, or a version without places wrote
    the epoch.
    """

    from_batch: int
    settings: Mapping[str, SettingValue]
    skip: list[str]
    code_version: str
    begins: LogPlace | None = None


class KnownOutage(Struct, frozen=True):
    """An outage, and the first batch that knows it."""

    from_batch: int
    outage: Outage


class OwnerRecord(Struct, frozen=True):
    """What one owner of the topics knows: the configurations and outages so far, each with its first batch.

    `committed` is the last batch known to be committed, None if there is none.
    """

    epochs: list[Epoch] = field(default_factory=list)
    outages: list[KnownOutage] = field(default_factory=list)
    committed: Committed | None = None
