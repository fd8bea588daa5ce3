"""What earlier versions of the state wrote is read: rows, requests, and the records of all topics.

`tests/histories/state_v<version>.json.xz` was recorded by that version's own code. The rows of a version are
read at each point of its logs, and this code goes on from them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, Struct, structs

from checkpoints import codec
from checkpoints.codec import STATE_VERSION
from checkpoints.upgrades import SAME_RULES
from clients.answers import decode_response
from insight.metrics.metrics_state import MetricsState
from records.claims import Claim
from records.history import (
    CoordinatorStarted,
    GroupTable,
    HistoryReader,
    decode_any_entry,
    decode_any_snapshot,
)
from records.pack import unpack
from records.partitioner import partition_of
from records.sharding import DEFAULT_SHARDS, shard_of
from state.config import CoordinatorConfig
from state.kafka.consumer_group import MemberState
from state.kafka.snapshot import GroupSnapshot
from streaming.service.offset_topics import OffsetTopics
from tests.harness.operator_call import CONFIG
from tests.histories.record import State, handle
from tests.histories.recording import OutputRecord, Part, Recorded, as_json, load, path_of
from tests.spark.log import LAYOUT, Record

VERSIONS = range(1, STATE_VERSION + 1)
RECORDED = {version: load(version) for version in VERSIONS if path_of(version).exists()}
# Recorded under the first version number, but before its release: rules have changed since (of 5: TO6).
OF_OTHER_RULES = {1, 2, 5}
# Removed from version 3 on. Such a request is now refused, which no client notices: only the coordinator's
# own process sent it.
REMOVED_REQUESTS = {"TopicsDeleted"}
FIRST_WITH_CLAIMS = 3
FIRST_WITH_TRANSACTIONS = 5
FIRST_WITH_CONSUMER_GROUPS = 6
FIRST_WITH_CHECKED_PATTERNS = 7
# Names of fields of the state in old code. They are not stored.
RENAMED = {"awaiting_sync": "pending_sync"}

every_version = pytest.mark.parametrize("version", VERSIONS)


def steps(recorded: Recorded) -> Iterator[tuple[Part | None, Part]]:
    """Each part of each log, with the part before it."""
    for parts in recorded.logs.values():
        yield from zip((None, *parts), parts, strict=False)


def outputs(recorded: Recorded, topic: str) -> Iterator[list[OutputRecord]]:
    """The records of an output topic, log by log."""
    for parts in recorded.logs.values():
        yield [record for part in parts for record in part.output if record.topic == topic]


def state_after(part: Part | None) -> State:
    """The rows that this version would have: those of the recorded version, moved into shards."""
    shards: dict[int, dict[str, codec.Entry]] = {}
    for row in part.rows if part is not None else ():
        for group_id, entry in codec.read_row(row.key, row.version, row.payload).items():
            partition = partition_of(group_id, LAYOUT.request_partitions)
            shards.setdefault(shard_of(group_id, partition, DEFAULT_SHARDS), {})[group_id] = entry
    return {shard: codec.write_row(entries) for shard, entries in shards.items()}


def records_of(part: Part) -> list[Record]:
    return [Record(r.partition, r.offset, r.at_ms, r.key.encode(), r.value.encode()) for r in part.records]


def said(output: Iterable[OutputRecord]) -> Counter[tuple[str, int, str | None, str | None]]:
    """What was written, answers of a pack one by one. The order of two groups' records has no meaning."""
    return Counter(
        (record.topic, record.partition, record.key, value)
        for record in output
        for value in ([None] if record.value is None else map(bytes.decode, unpack(record.value.encode())))
    )


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def requests_answered(output: Iterable[OutputRecord]) -> set[str]:
    return {
        msgspec.json.decode(value)["request"]
        for (topic, _, _, value) in said(output)
        if topic == LAYOUT.responses_topic and value is not None and '"request":' in value
    }


def check_has(value: Any, recorded: Any, where: str) -> None:
    """The value has every recorded field. A field that is newer has its default, or is None."""
    if not isinstance(value, Struct):
        if isinstance(value, Mapping):
            items = {name: item for key, item in value.items() for name in as_json({key: None})}
            assert items.keys() == recorded.keys(), where
            for name, item in items.items():
                check_has(item, recorded[name], f"{where}.{name}")
        else:
            assert as_json(value) == recorded, where
        return
    recorded = {RENAMED.get(name, name): held for name, held in recorded.items()}
    assert recorded.keys() <= set(value.__struct_fields__), where
    for field in structs.fields(value):
        held, name = getattr(value, field.name), f"{where}.{field.name}"
        if field.name in recorded:
            check_has(held, recorded[field.name], name)
        else:
            assert held == default_of(field), name


def default_of(field: structs.FieldInfo) -> Any:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return None if field.default is NODEFAULT else field.default


def test_every_version_of_the_state_has_its_history() -> None:
    """Record it with the last commit that has the version: `python -m tests.histories.record COMMIT`."""
    assert list(RECORDED) == list(VERSIONS)
    assert [recorded.state_version for recorded in RECORDED.values()] == list(VERSIONS)


@every_version
def test_the_groups_are_as_the_version_left_them(version: int) -> None:
    for _, part in steps(RECORDED[version]):
        groups = {
            group_id: codec.decode_group(group_id, entry)
            for row in part.rows
            for group_id, entry in codec.read_row(row.key, row.version, row.payload).items()
        }
        assert {row.version for row in part.rows} <= {version}
        check_has(groups, part.groups, f"version {version}")


@every_version
def test_a_history_has_groups_in_every_state(version: int) -> None:
    """Else the tests here would show little."""
    groups = [group for _, part in steps(RECORDED[version]) for group in part.groups.values()]
    assert {group["state"] for group in groups if "state" in group} == {
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
    }
    kafka_fields = {name for group in groups if "state" in group for name, held in group.items() if held}
    assert {"static_members", "pending_members", "offsets", "join_phase"} <= kafka_fields
    if version >= FIRST_WITH_TRANSACTIONS:
        assert {"pending", "ended"} <= kafka_fields
    if version >= FIRST_WITH_CONSUMER_GROUPS:
        _check_has_consumer_groups([group for group in groups if "group_epoch" in group])
        assert version < FIRST_WITH_CHECKED_PATTERNS or any(group.get("checked_regexes") for group in groups)
        assert [group["configs"] for group in groups if not {"members", "channels"} & group.keys()]
    assert {"channels", "subscriptions", "producers", "locks"} <= {
        name for group in groups for name, held in group.items() if held
    }


def _check_has_consumer_groups(groups: list[dict[str, Any]]) -> None:
    """Members in each state, of both protocols, and groups with settings and offsets."""
    members = [member for group in groups for member in group["members"].values()]
    assert {member["state"] for member in members} == set(MemberState)
    of_members = {name for member in members for name, held in member.items() if held}
    assert {"classic", "instance_id", "pending_revocation", "subscribed_topic_regex"} <= of_members
    of_groups = {name for group in groups for name, held in group.items() if held}
    assert {"configs", "offsets", "resolved_regexes", "static_members", "target", "topics"} <= of_groups


@every_version
def test_a_batch_of_the_version_runs_with_the_same_outcome(version: int) -> None:
    """From the version's own rows. The first part begins without state, so whole logs are handled, too.

    Where this fails because rules were changed on purpose: give the project a new version, begin
    `checkpoints.upgrades.SAME_RULES` with it anew, and put the version of the state into OF_OTHER_RULES.
    """
    recorded = RECORDED[version]
    assert CoordinatorConfig().with_settings(recorded.settings) == CONFIG
    same_rules = version not in OF_OTHER_RULES and recorded.code_version in SAME_RULES
    for before, part in steps(recorded):
        state = state_after(before)
        output = handle(records_of(part), state, part.watermark_ms)
        if same_rules:
            assert said(output) == said(part.output)
            assert state_after(part).keys() == state.keys()
        removed = {
            f"{LAYOUT.requests_topic}-{r.partition}-{r.offset}"
            for r in part.records
            if any(f'"type":"{name}"' in r.value for name in REMOVED_REQUESTS)
        }
        assert requests_answered(output) - removed == requests_answered(part.output) - removed


@every_version
def test_the_history_is_read_without_a_gap(version: int) -> None:
    for records in outputs(RECORDED[version], LAYOUT.events_topic):
        reader = HistoryReader(from_start=True)
        entries = [decode_any_entry((record.value or "").encode()) for record in records]
        for record, entry in zip(records, entries, strict=True):
            assert entry is not None
            assert not isinstance(entry, CoordinatorStarted)
            assert reader.is_new(entry)
            recorded = msgspec.json.decode(record.value or "")
            assert (entry.group_id, entry.seq, entry.type) == tuple(
                recorded[name] for name in ("group_id", "seq", "type")
            )
        assert reader.gaps == {}
        assert reader.duplicates == 0
        assert entries


@every_version
def test_the_views_are_read(version: int) -> None:
    for parts in RECORDED[version].logs.values():
        table = GroupTable(decode_any_snapshot)
        for part in parts:
            for record in part.output:
                if record.topic == LAYOUT.groups_topic:
                    table.take(encoded(record.key), encoded(record.value))
            of_kafka = {view.group_id: view for view in table.groups if isinstance(view, GroupSnapshot)}
            held = {g: group for g, group in part.groups.items() if {"state", "group_epoch"} & group.keys()}
            assert {g: (v.generation, len(v.members)) for g, v in of_kafka.items()} == {
                g: (group.get("generation", group.get("group_epoch")), len(group["members"]))
                for g, group in held.items()
            }
            states = {group_id: view.state for group_id, view in of_kafka.items() if not view.consumer}
            assert states == {g: group["state"] for g, group in held.items() if "state" in group}


@every_version
def test_the_offsets_are_read(version: int) -> None:
    """By the watcher of topics, which knows their topics' ids, and by the metrics."""
    for parts in RECORDED[version].logs.values():
        topics, metrics = OffsetTopics(), MetricsState(LAYOUT)
        for part in parts:
            for record in part.output:
                if record.topic == LAYOUT.offsets_topic:
                    key, value = encoded(record.key) or b"", encoded(record.value)
                    topics.take(key, value)
                    metrics.take(record.topic, key, value)
            held = {
                (group_id, topic, int(partition)): offset["offset"]
                for group_id, group in part.groups.items()
                for topic, partitions in group.get("offsets", {}).items()
                for partition, offset in partitions.items()
            }
            assert topics.names() == {topic for _, topic, _ in held}
            assert offsets_of(metrics) == held


def offsets_of(metrics: MetricsState) -> dict[tuple[str, str, int], int]:
    metrics.complete()
    offsets = metrics.numbers().offsets
    assert offsets is not None
    return {(g, topic, p): offset for g, held in offsets.items() for (topic, p), offset in held.items()}


@every_version
def test_the_answers_are_read_by_todays_clients(version: int) -> None:
    """So a gateway may be upgraded before the coordinator."""
    for records in outputs(RECORDED[version], LAYOUT.responses_topic):
        answers = [answer for record in records for answer in unpack((record.value or "").encode())]
        for recorded, answer in ((msgspec.json.decode(answer), answer) for answer in answers):
            if recorded["type"] not in REMOVED_REQUESTS:
                read = msgspec.json.decode(msgspec.json.encode(decode_response(answer)))
                assert {name: read[name] for name in recorded if name in read} == recorded
        assert answers


@every_version
def test_the_entry_of_a_start_and_the_claim_are_read(version: int) -> None:
    recorded = RECORDED[version]
    entry = decode_any_entry(msgspec.json.encode(recorded.started))
    assert isinstance(entry, CoordinatorStarted)
    assert (entry.settings, entry.code_version) == (recorded.settings, recorded.code_version)
    assert entry.owner_epoch == (1 if version >= FIRST_WITH_CLAIMS else 0)
    assert (recorded.claim is not None) == (version >= FIRST_WITH_CLAIMS)
    if recorded.claim is not None:
        claim = msgspec.json.decode(msgspec.json.encode(recorded.claim), type=Claim)
        check_has(claim, recorded.claim, "claim")
