"""Records of `__consumer_offsets` for tests: those of a real broker, and random lives of groups."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from kafka_why.contract.kafka.history import SHARE, STREAMS, HistoryEntry, Offset, OffsetChange
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
    GroupEpoch,
    MemberAssigned,
    MemberSubscribed,
    MemberTarget,
    OffsetCommitted,
    TargetEpoch,
)
from kafka_why.observed.step import observe, observe_rebalancing
from streaming.query.admission import LogRow
from tests.harness.observed_epochs import NAMES, Said, has, random_epochs, subscription, target

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
    """Return what `real_rows` say."""
    decoded = [(row, decode(row.key, row.value or None)) for row in real_rows(path)]
    return [Said(row.at_ms, d.group_id, d.content) for row, d in decoded]


def converted_rows() -> list[LogRow]:
    """Return the group `consumer` of `real_rows` as one that was converted from a classic group whose records
    are gone. Their removal has the time of the first records of the consumer protocol.
    """
    rows = [row for row in real_rows() if decode(row.key, row.value or None).group_id == "consumer"]
    removal = rows[0]._replace(key=b"\0\2\0\x08consumer", value=b"")
    return [row._replace(partition=0, offset=n) for n, row in enumerate([removal, *rows])]


class Watched:
    """Groups that are observed record by record. `history` has the entries in order."""

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
            at = RecordPosition(at_ms, record, f"{record}@o")
            group = self.groups.get(group_id)
            if isinstance(says, RebalanceSeen):
                if group is None:
                    continue
                seen = observe_rebalancing(group, says, at)
            else:
                seen = observe(group, group_id, says, at, self._names, self._removed_ms.get(group_id))
                self._removed_ms[group_id] = seen.removed_ms
            self.history += seen.history
            self.offsets += seen.offsets
            if seen.is_over:
                self.groups.pop(group_id, None)
            else:
                self.groups[group_id] = seen.group
        return self

    def of(self, group_id: str) -> list[HistoryEntry]:
        return [entry for entry in self.history if entry.group_id == group_id]


def classic_member(
    name: str, *partitions: int, instance: str | None = None, topic: str = "orders"
) -> ClassicMember:
    """Return a member of a classic group with these partitions."""
    held = tuple(TopicPartition(topic, number) for number in partitions)
    return ClassicMember(
        member_id=f"{name}-1",
        group_instance_id=instance,
        client_id=name,
        client_host="/10.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=60_000,
        subscription=encode_subscription(Subscription((topic,))),
        assignment=encode_assignment(Assignment(held)),
    )


def generation(number: int, *members: ClassicMember, since_ms: int | None = None) -> ClassicGeneration:
    """Return a generation with these members, the first of which leads."""
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
    """Return a look at the group `G`, which was rebalancing with these members, first seen so at
    `first_ms`.
    """
    known = tuple(SeenMember(f"{name}-1", None, name, "/10.0.0.1") for name in members)
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
            members=known or None,
        ),
    )


def created(group_id: str, at_ms: int) -> Said:
    """Return what Kafka writes when a member joins a classic group that does not exist."""
    return Said(at_ms, group_id, ClassicGeneration("", 0, None, None, at_ms, ()))


def committed(partition: int, offset: int, at_ms: int, topic: str = "orders") -> OffsetCommitted:
    return OffsetCommitted(topic, partition, Offset(offset, -1, "", at_ms, None, None))


def random_life(random: Random, group_id: str, steps: int = 40) -> Iterator[Said]:
    """Yield a life of a group of some type, as its coordinator writes it."""
    lives = (
        _classic_life,
        _consumer_life,
        partial(random_epochs, kind=SHARE),
        partial(random_epochs, kind=STREAMS),
    )
    yield from random.choice(lives)(random, group_id, steps)


def _classic_life(random: Random, group_id: str, steps: int) -> Iterator[Said]:
    now_ms, number, members = 1_000, 0, list[str]()
    yield created(group_id, now_ms)
    for _ in range(steps):
        now_ms += random.randrange(1, 5_000)
        if random.random() < 0.6:
            at = committed(random.randrange(4), random.randrange(1_000), now_ms)
            yield Said(
                now_ms,
                group_id,
                at if random.random() < 0.9 else OffsetCommitted("orders", at.partition, None),
            )
            continue
        members = _changed(random, members)
        number += random.choice((1, 1, 1, 2))
        there = [classic_member(m, *range(n, 4, len(members))) for n, m in enumerate(members)]
        yield Said(now_ms, group_id, generation(number, *there, since_ms=now_ms - random.randrange(50)))
        if not members and random.random() < 0.2:
            yield from (Said(now_ms, group_id, OffsetCommitted("orders", n, None)) for n in range(4))
            yield Said(now_ms, group_id, ClassicGroupRemoved())
            number = 0
            yield created(group_id, now_ms)


def _consumer_life(random: Random, group_id: str, steps: int) -> Iterator[Said]:
    now_ms, epoch, members = 1_000, 1, list[str]()
    for _ in range(steps):
        now_ms += random.randrange(1, 5_000)
        before, members = members, _changed(random, members)
        epoch += 1
        for gone in set(before) - set(members):
            yield Said(now_ms, group_id, MemberAssigned(gone, None))
            yield Said(now_ms, group_id, MemberTarget(gone, None))
            yield Said(now_ms, group_id, MemberSubscribed(gone, None))
        for new in [m for m in members if m not in before]:
            yield Said(now_ms, group_id, MemberSubscribed(new, subscription(new)))
        yield Said(now_ms, group_id, GroupEpoch(epoch, 7))
        for n, m in enumerate(members):
            yield Said(now_ms, group_id, target(m, *range(n, 4, len(members))))
        yield Said(now_ms, group_id, TargetEpoch(epoch, now_ms))
        for n, m in enumerate(members):
            now_ms += random.randrange(3)
            yield Said(now_ms, group_id, has(m, epoch, *range(n, 4, len(members))))


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
    """Return what the log's cleaner leaves: of the records before `end` the latest of each key, tombstones
    too.
    """
    latest = {_key(record): place for place, record in enumerate(said[:end])}
    return [record for place, record in enumerate(said) if place >= end or latest[_key(record)] == place]


def _key(said: Said) -> tuple[object, ...]:
    """Return what is the same of the records of one key in `__consumer_offsets`."""
    says = said.says
    if isinstance(says, OffsetCommitted):
        return said.group_id, "offset", says.topic, says.partition
    kind = {"ClassicGroupRemoved": "ClassicGeneration", "GroupEpochRemoved": "GroupEpoch"}.get(
        type(says).__name__, type(says).__name__
    )
    return said.group_id, kind, getattr(says, "member_id", "")


def check_told(
    entries: Sequence[HistoryEntry],
    tail: Sequence[tuple[str, str | None, str]],
    fields: Mapping[int, Mapping[str, Any]],
) -> None:
    """Assert that the history ends with these entries, and what some of them say, by their places in it. Of a
    reason a part suffices.
    """
    assert told(list(entries))[len(entries) - len(tail) :] == list(tail)
    found = {
        at: {name: _shown(entries[at], name, part) for name, part in of.items()} for at, of in fields.items()
    }
    assert found == fields


def _shown(entry: HistoryEntry, name: str, expected: Any) -> Any:
    value = getattr(entry, name)
    return expected if name == "reason" and expected in value else value
