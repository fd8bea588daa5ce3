"""Record the history of this version of the state: `python -m tests.histories.record`.

It writes `tests/histories/state_v<version>.json.xz` unless that file exists, because a recorded file never
changes. The file has random logs of groups of both protocols. Each log is handled in parts, as batches.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import json, structs

from checkpoints import codec
from checkpoints.checkpoint import code_version
from checkpoints.codec import STATE_VERSION
from checkpoints.metadata import Identity
from kafka_why.contract.codec import AnyRequest, record_of
from kafka_why.contract.kafka.requests import (
    AlterGroupConfigs,
    CommittedPartition,
    CommittedTopic,
    ConsumerGroupHeartbeat,
    JoinGroup,
    OffsetCommit,
    Protocol,
)
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, Subscription, encode_subscription
from kafka_why.contract.rocketmq.requests import MessageModel, RegisterConsumer, SubscriptionData
from state.config import Configs
from state.dispatch import step
from state.timeline import Row
from streaming.query.admission import DEFAULT_SHARDS
from streaming.service.ownership.owner import claim_of
from tests.harness import consumer_log, rocketmq_log, share_log, streams_log
from tests.harness.operator_call import CONFIG
from tests.harness.random_log import GROUPS, PARTITION_OF
from tests.harness.simulated_broker import StoredRecord
from tests.harness.simulated_query import Batch, Store, run_batch
from tests.histories.recording import (
    InputRecord,
    OutputRecord,
    Part,
    Recorded,
    StateRow,
    as_json,
    path_of,
    store,
)
from tests.spark import recorded_log
from tests.spark.log import LAYOUT, NAMESPACE, T0, Record
from tests.spark.recorded_log import NAMES, records_of

SEEDS = range(100)
LENGTH = 60
LOGS = 4  # of each protocol
SILENCE_MS = (60_000, 86_400_000)
"""The last parts have no requests: sessions end, then retention does."""

State = dict[int, tuple[int, bytes]]
"""The rows of the state by shard."""


def logs() -> dict[str, list[Part]]:
    """Return the logs by name: of the random ones those that add the most kinds of groups."""
    found: dict[str, list[Part]] = {}
    for protocol, rows_of in _PROTOCOLS.items():
        played = {f"{protocol} {seed}": parts(rows_of(seed)) for seed in SEEDS}
        seen: set[tuple[object, ...]] = set()
        for _ in range(LOGS):
            best = max(played, key=lambda name: len(_kinds_in(played[name]) - seen))
            seen |= _kinds_in(played[best])
            found[best] = played.pop(best)
    return found


def _kinds_in(log: Iterable[Part]) -> set[tuple[object, ...]]:
    """Return the kinds of groups, members and tables of consumers in a log: the state, and which of the
    fields have something in them.
    """
    groups = [group for part in log for group in part.groups.values()]
    held_in = [group.get("members", group.get("consumers", {})) for group in groups]
    members = [member for held in held_in for member in held.values()]
    return {(held.get("state"), *(bool(held[name]) for name in sorted(held))) for held in (*groups, *members)}


def _of_kafka(seed: int) -> list[Row]:
    """Return a random log of Kafka's groups, with packed records."""
    return recorded_log.record(seed, LENGTH, CONFIG)


def _of_rocketmq(seed: int) -> list[Row]:
    """At the end with what the random moves seldom have: two clients with different subscriptions."""
    rows = rocketmq_log.realise(seed, LENGTH)
    heartbeats = [
        RegisterConsumer(
            group_id=GROUPS[0],
            connection=f"c-{topic}",
            client_id=topic,
            correlation_id="c",
            reply_partition=0,
            broker="b/1",
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=(SubscriptionData(topic),),
        )
        for topic in "tu"
    ]
    return _renamed([*rows, *_behind(rows, heartbeats)])


def _of_consumer(seed: int) -> list[Row]:
    """Groups of the consumer protocol, and at the end what the random moves have not: offsets of a member, a
    group's settings with and without the group, and a classic group that is converted.
    """
    world = consumer_log.ConsumerLog(seed, CONFIG)
    world.play(LENGTH)
    member = next(iter(group.members.values()), None) if (group := world.group(GROUPS[0])) else None
    to: dict[str, Any] = {"correlation_id": "c", "reply_partition": 0, "api_version": 9, "client_id": "c"}
    configs: dict[str, str | None] = {"consumer.session.timeout.ms": "50000"}
    offsets = [CommittedTopic("foo", [CommittedPartition(0, seed)])]
    subscription = encode_subscription(Subscription(("foo",)))
    foo: TopicImages = {"foo": TopicImage(UUID(int=seed + 1), 4)}
    requests: list[AnyRequest] = [
        *(AlterGroupConfigs(group_id=group_id, configs=configs, **to) for group_id in GROUPS[:2]),
        OffsetCommit(
            group_id=GROUPS[0],
            member_id="" if member is None else member.member_id,
            generation_id=-1 if member is None else member.member_epoch,
            topics=offsets,
            **to,
        ),
        JoinGroup(
            group_id=GROUPS[2],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            group_instance_id="i",
            protocol_type=PROTOCOL_TYPE,
            protocols=[Protocol("range", subscription)],
            topics=foo,
            **to,
        ),
        ConsumerGroupHeartbeat(
            group_id=GROUPS[2],
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["foo"],
            topic_partitions=[],
            topics=foo,
            **to,
        ),
    ]
    return _renamed([*world.rows, *_behind(world.rows, requests)])


def _behind(rows: Sequence[Row], requests: Iterable[AnyRequest]) -> list[Row]:
    """Return the requests as rows that come after these in the log."""
    places = [record_of(row.request_id) for row in rows]
    ends = Counter(partition for _, partition, _ in places)
    at_ms = rows[-1].at_ms + 1 if rows else T0
    added = []
    for request in requests:
        partition = PARTITION_OF[request.group_id]
        added.append(Row(at_ms, f"{LAYOUT.requests_topic}-{partition}-{ends[partition]}", request))
        ends[partition] += 1
    return added


def _of_share(seed: int) -> list[Row]:
    world = share_log.ShareLog(seed, CONFIG)
    world.play(LENGTH)
    return _renamed(world.rows)


def _of_streams(seed: int) -> list[Row]:
    world = streams_log.StreamsLog(seed, CONFIG)
    world.play(LENGTH)
    return _renamed(world.rows)


_PROTOCOLS = {
    "kafka": _of_kafka,
    "consumer": _of_consumer,
    "share": _of_share,
    "streams": _of_streams,
    "rocketmq": _of_rocketmq,
}


def _renamed(rows: Iterable[Row]) -> list[Row]:
    """Return rows whose groups have names that belong to the partition that they are in."""
    return [
        structs.replace(row, request=structs.replace(row.request, group_id=NAMES[row.request.group_id]))
        for row in rows
    ]


def parts(rows: Sequence[Row]) -> list[Part]:
    """Two parts with a half of the log each, and the parts without requests."""
    # A cut between two moments, so that it cuts no pack.
    middle_ms, end_ms = rows[len(rows) // 2].at_ms, rows[-1].at_ms
    records = [record for p in range(LAYOUT.request_partitions) for record in records_of(rows, p)]
    batches = [
        ([record for record in records if record.at_ms < middle_ms], middle_ms - 1),
        ([record for record in records if record.at_ms >= middle_ms], end_ms),
        *(([], end_ms + silence_ms) for silence_ms in SILENCE_MS),
    ]
    state: State = {}
    return [part(batch, state, watermark_ms) for batch, watermark_ms in batches]


def part(records: Sequence[Record], state: State, watermark_ms: int) -> Part:
    """Handle a batch, and change the state."""
    output = handle(records, state, watermark_ms)
    return Part(
        watermark_ms,
        [InputRecord(r.partition, r.offset, r.at_ms, _text(r.key), _text(r.value)) for r in records],
        output,
        [StateRow(shard, *row) for shard, row in sorted(state.items())],
        {
            group_id: as_json(codec.decode_group(group_id, entry))
            for shard, row in sorted(state.items())
            for group_id, entry in codec.read_row(str(shard), *row).items()
        },
    )


def handle(records: Iterable[Record], state: State, watermark_ms: int) -> list[OutputRecord]:
    """Call the operator for each shard with records or state, and change the state. Return what it wrote."""
    store = Store(state, dict.fromkeys(state, 0))
    stored = [StoredRecord(LAYOUT.requests_topic, *record, ()) for record in records]
    batch = Batch(stored, watermark_ms, Configs(CONFIG), frozenset(), ())
    return [
        OutputRecord(
            out.topic,
            int(out.partition),
            _text(out.key) or None,
            None if out.value is None else _text(out.value),
        )
        for out in chain.from_iterable(run_batch(LAYOUT, DEFAULT_SHARDS, step, store, batch))
    ]


def _text(content: bytes | None) -> str:
    return (content or b"").decode()


def started() -> dict[str, object]:
    """Return the entry of a start. `Coordinator._announce` writes these fields."""
    return {
        "version": 1,
        "type": "CoordinatorStarted",
        "at_ms": 1,
        "from_batch": 0,
        "settings": CONFIG.settings(),
        "skip": [],
        "code_version": code_version(),
        "owner_epoch": 1,
    }


def main() -> None:
    if path_of(STATE_VERSION).exists():
        sys.exit(f"{path_of(STATE_VERSION)} exists, and a recorded history never changes")
    identity = Identity(
        "cluster", LAYOUT.requests_topic, "topic id", LAYOUT.request_partitions, NAMESPACE, DEFAULT_SHARDS
    )
    claim = json.decode(json.encode(claim_of(identity, Path("/data/coordinator"), 100)))
    claim |= {"claim_id": "id", "host": "host", "pid": 1, "since_ms": 1}
    store(Recorded(STATE_VERSION, code_version(), CONFIG.settings(), logs(), started(), claim))


if __name__ == "__main__":
    main()
