"""Records of `__consumer_offsets`: those of a real broker, and those of random lives of groups."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS, HistoryEntry, Offset, OffsetChange
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)
from kafka_why.contract.sightings import RebalanceSeen, SeenMember
from kafka_why.observed.consumer_offsets.decode import decode
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import RecordPosition
from kafka_why.observed.records import (
    AnyRecord,
    ClassicGeneration,
    ClassicGroupRemoved,
    ClassicMember,
    OffsetCommitted,
)
from kafka_why.observed.step import observe, observe_rebalancing
from kafka_why.observed.view import view_of
from streaming.query.admission import LogRow
from tests.harness.observed_epochs import NAMES, Said, random_epochs

DATA = Path(__file__).parents[1] / "data"
REAL = DATA / "consumer_offsets_4_4.jsonl"
REAL_OF_OTHERS = DATA / "share_streams_offsets_4_4.jsonl"


def real_rows(path: Path = REAL) -> list[LogRow]:
    """Return the topic of a Kafka 4.4 broker. A classic group: c1 joins, c2 joins, c2 leaves, c1 leaves. Then
    a group of the consumer protocol: k1 joins, k2 joins, k2 leaves, k1 leaves.

    `REAL_OF_OTHERS` has Java clients. The share group `queue`: s1 joins, s2 joins, s1 leaves, s2 leaves, and
    the group is deleted. The streams group `counts` with a standby for each task: t1 joins, t2 joins, t1
    leaves, t2 leaves. Both read the 4 partitions of `orders`.
    """
    rows = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        value = b"" if record["value"] is None else bytes.fromhex(record["value"])
        key = bytes.fromhex(record["key"])
        rows.append(LogRow(record["partition"], record["offset"], record["at_ms"], key, value))
    return rows


def real_records(path: Path = REAL) -> list[Said]:
    """Return the decoded `real_rows`."""
    decoded = [(row, decode(row.key, row.value or None)) for row in real_rows(path)]
    return [Said(row.at_ms, d.group_id, d.content) for row, d in decoded]


def view_after(group_id: str, records: int) -> GroupSnapshot:
    """Return the view of a group after the first `records` records of `REAL_OF_OTHERS`."""
    return view_of(Watched().take(real_records(REAL_OF_OTHERS)[:records]).groups[group_id], {})


def converted_rows() -> list[LogRow]:
    """Return the group `consumer` of `real_rows` as if it had been converted from a classic group whose
    records have been compacted. Their removal has the time of the first records of the consumer protocol.
    """
    rows = [row for row in real_rows() if decode(row.key, row.value or None).group_id == "consumer"]
    removal = rows[0]._replace(key=b"\0\2\0\x08consumer", value=b"")
    return [row._replace(partition=0, offset=n) for n, row in enumerate([removal, *rows])]


class Watched:
    """Groups observed record by record. `history` has the entries in order."""

    def __init__(self, names: Mapping[bytes, str] = NAMES) -> None:
        self.groups: dict[str, ObservedGroup] = {}
        self.history: list[HistoryEntry] = []
        self.offsets: list[OffsetChange] = []
        self._names = names
        self._removed_ms: dict[str, int | None] = {}
        self._count = 0

    def take(self, said: Iterable[Said]) -> "Watched":
        """Apply the records."""
        for at_ms, group_id, says in said:
            record = f"topic-0-{self._count}"
            self._count += 1
            position = RecordPosition(at_ms, record, f"{record}@o")
            group = self.groups.get(group_id)
            if isinstance(says, RebalanceSeen):
                if group is None:
                    continue
                result = observe_rebalancing(group, says, position)
            else:
                result = observe(group, group_id, says, position, self._names, self._removed_ms.get(group_id))
                self._removed_ms[group_id] = result.removed_ms
            self.history += result.history
            self.offsets += result.offsets
            if result.is_over:
                self.groups.pop(group_id, None)
            else:
                self.groups[group_id] = result.group
        return self

    def of(self, group_id: str) -> list[HistoryEntry]:
        return [entry for entry in self.history if entry.group_id == group_id]


def classic_member(
    name: str, *partitions: int, instance: str | None = None, topic: str = "orders"
) -> ClassicMember:
    """Return a member of a classic group with these partitions."""
    assigned = tuple(TopicPartition(topic, number) for number in partitions)
    return ClassicMember(
        member_id=f"{name}-1",
        group_instance_id=instance,
        client_id=name,
        client_host="/10.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        subscription=encode_subscription(Subscription((topic,))),
        assignment=encode_assignment(Assignment(assigned)),
    )


def generation(number: int, *members: ClassicMember, since_ms: int | None = None) -> ClassicGeneration:
    """Return a generation with these members. The first is the leader."""
    return ClassicGeneration(
        protocol_type="consumer",
        generation=number,
        protocol_name="range" if members else None,
        leader_id=members[0].member_id if members else None,
        since_ms=since_ms,
        members=members,
    )


def seen(
    seen_ms: int,
    *members: str,
    first_ms: int | None = None,
    within_ms: int = 1_000,
    read_ms: int | None = None,
    state: str = "PreparingRebalance",
    run: str = "run",
    is_over: bool = False,
) -> Said:
    """Return a poll of the group `G`: it was rebalancing with these members, first seen at `first_ms`."""
    seen_members = tuple(SeenMember(f"{name}-1", None, name, "/10.0.0.1") for name in members)
    return Said(
        seen_ms,
        G,
        RebalanceSeen(
            run=run,
            state=state,
            first_ms=seen_ms if first_ms is None else first_ms,
            seen_ms=seen_ms,
            within_ms=within_ms,
            read_ms=read_ms,
            is_over=is_over,
            members=seen_members or None,
        ),
    )


def created(group_id: str, at_ms: int) -> Said:
    """Return the record that Kafka writes when the first member joins a classic group."""
    return Said(at_ms, group_id, ClassicGeneration("", 0, None, None, at_ms, ()))


def committed(partition: int, offset: int, at_ms: int, topic: str = "orders") -> OffsetCommitted:
    return OffsetCommitted(topic, partition, Offset(offset, -1, "", at_ms, None, None))


def random_life(random: Random, group_id: str, steps: int = 40) -> Iterator[Said]:
    """Yield a life of a group of some type, as its coordinator writes it."""
    kind = random.choice((None, CONSUMER, SHARE, STREAMS))
    if kind is None:
        yield from _classic_life(random, group_id, steps)
    else:
        yield from random_epochs(random, group_id, steps, kind=kind)


def _classic_life(random: Random, group_id: str, steps: int) -> Iterator[Said]:
    now_ms, number, members = 1_000, 0, list[str]()
    yield created(group_id, now_ms)
    for _ in range(steps):
        now_ms += random.randrange(1, 5_000)
        if random.random() < 0.6:
            commit = committed(random.randrange(4), random.randrange(1_000), now_ms)
            yield Said(
                now_ms,
                group_id,
                commit if random.random() < 0.9 else OffsetCommitted("orders", commit.partition, None),
            )
            continue
        members = _changed(random, members)
        number += random.choice((1, 1, 1, 2))
        present = [classic_member(m, *range(n, 4, len(members))) for n, m in enumerate(members)]
        yield Said(now_ms, group_id, generation(number, *present, since_ms=now_ms - random.randrange(50)))
        if not members and random.random() < 0.2:
            yield from (Said(now_ms, group_id, OffsetCommitted("orders", n, None)) for n in range(4))
            yield Said(now_ms, group_id, ClassicGroupRemoved())
            number = 0
            yield created(group_id, now_ms)


def _changed(random: Random, members: list[str]) -> list[str]:
    kept = [m for m in members if random.random() < 0.7]
    return kept if members and random.random() < 0.5 else [*kept, f"m{random.randrange(10**6)}"]


G = "g"
CREATED = Said(1_000, G, ClassicGeneration("", 0, None, None, 1_000, ()))


def at(at_ms: int, *records: AnyRecord) -> tuple[Said, ...]:
    """Return records of one request on the group `G`."""
    return tuple(Said(at_ms, G, record) for record in records)


def watch(*said: Said) -> list[HistoryEntry]:
    """Return the history that follows from these records."""
    return Watched().take(said).history


def told(entries: list[HistoryEntry]) -> list[tuple[str, str | None, str]]:
    """Return the type, the member's name and the row of each entry."""
    return [
        (entry.type.value, None if entry.member_id is None else entry.member_id.split("-")[0], entry.rule)
        for entry in entries
    ]


def generations(*changes: ClassicGeneration) -> tuple[Said, ...]:
    """Return the records of a new group and of its generations, a second apart."""
    return (CREATED, *(Said(2_000 + 1_000 * n, G, change) for n, change in enumerate(changes)))


def compact(said: Sequence[Said], end: int) -> list[Said]:
    """Return the records that compaction leaves: before `end`, the latest of each key or its tombstone."""
    latest = {_key(record): index for index, record in enumerate(said[:end])}
    return [record for index, record in enumerate(said) if index >= end or latest[_key(record)] == index]


def _key(said: Said) -> tuple[object, ...]:
    """Return the key of a record in `__consumer_offsets`."""
    says = said.says
    if isinstance(says, OffsetCommitted):
        return said.group_id, "offset", says.topic, says.partition
    kind = {"ClassicGroupRemoved": "ClassicGeneration", "GroupEpochRemoved": "GroupEpoch"}.get(
        type(says).__name__, type(says).__name__
    )
    return said.group_id, kind, getattr(says, "member_id", "")


def check_history_ends(
    entries: Sequence[HistoryEntry],
    tail: Sequence[tuple[str, str | None, str]],
    fields: Mapping[int, Mapping[str, Any]],
) -> None:
    """Assert that the history ends with `tail`, and that entries by index have `fields` (or a part)."""
    assert told(list(entries))[len(entries) - len(tail) :] == list(tail)
    actual = {
        index: {name: _shown(entries[index], name, value) for name, value in expected.items()}
        for index, expected in fields.items()
    }
    assert actual == fields


def _shown(entry: HistoryEntry, name: str, expected: Any) -> Any:
    value = getattr(entry, name)
    return expected if name == "reason" and expected in value else value
