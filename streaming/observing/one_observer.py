"""The check that no other observer uses an observer's topics. The incarnation in each view names the observer
that wrote it.

Two observers would write each view and each history entry twice, under their own incarnations. The check runs
once, at the start, so it does not find an observer that starts at the same moment.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from checkpoints.checkpoint import Checkpoint
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import Record, TopicReader
from streaming.service.topics import TopicsError

LAST_RECORDS = 200
"""The number of records at the end of a partition that are searched for the newest view."""
_TIMEOUT_MS = 30_000
# Length of the observer's id, a prefix of its namespace.
_ID_CHARS = 8


class _View(Struct, frozen=True):
    """The only field needed of `kafka_why.contract.kafka.snapshot.GroupSnapshot`."""

    incarnation: str


_view = msgspec.json.Decoder(_View)


def observer_id(namespace: str) -> str:
    """Return the id of the observer whose checkpoint has this namespace."""
    return namespace[:_ID_CHARS]


def incarnation(record_id: str, observer: str) -> str:
    """Return the incarnation of a group that `observer` first saw in the record `record_id`."""
    return f"{record_id}@{observer}"


def check_topics_are_ours(client_config: ClientConfig, layout: TopicLayout, folder: Path) -> None:
    """Raise TopicsError if another observer wrote the newest views on the topics.

    Raise FolderError if the checkpoint in the folder cannot be read. May raise KafkaError.
    """
    pinned = Checkpoint.at(folder).pinned()
    ours = None if pinned is None else observer_id(pinned.member_id_namespace)
    others = writers(_newest_records(client_config, layout)) - {ours}
    if others:
        raise TopicsError(
            f"another observer writes {layout.groups_topic}: its id is {' and '.join(sorted(others))}, and "
            f"{folder} is {'a new folder' if ours is None else f'that of {ours}'}. Give that observer's "
            "--data-dir, or another --prefix. If its folder is lost, delete the topics with this prefix"
        )


def writers(records: Iterable[Record]) -> set[str]:
    """Return the ids of the observers that wrote the newest view of each partition. `records` are in the
    order of each partition.
    """
    newest = {}
    for record in records:
        if record.value is not None:
            newest[record.partition] = _view.decode(record.value).incarnation.rpartition("@")[2]
    return set(newest.values())


def _newest_records(client_config: ClientConfig, layout: TopicLayout) -> list[Record]:
    with TopicReader(
        client_config, max_record_bytes=layout.response_record_max_bytes, timeout_ms=_TIMEOUT_MS
    ) as reader:
        partitions = reader.partitions_of(layout.groups_topic)
        ends, beginnings = reader.ends(partitions), reader.beginnings(partitions)
        reader.start(at={p: max(beginnings[p], end - LAST_RECORDS) for p, end in ends.items()})
        return [*reader.read_to(ends, timeout_ms=_TIMEOUT_MS)]
