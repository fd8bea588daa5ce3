"""Records of groups with epochs, as Kafka's coordinator writes them, and random lives of such groups."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.sightings import RebalanceSeen
from kafka_why.observed.group import ACTIVE, STANDBY, task_key
from kafka_why.observed.records import (
    AnyRecord,
    GroupEpoch,
    GroupEpochRemoved,
    MemberAssigned,
    MemberAssignment,
    MemberSubscribed,
    MemberSubscription,
    MemberTarget,
    SharePartitions,
    StreamsMember,
    TargetEpoch,
    TopologySent,
)

ORDERS = bytes(range(16))
NAMES = {ORDERS: "orders"}
_TASKS = 4


class Said(NamedTuple):
    """A record or a poll: its time, its group, and its content."""

    at_ms: int
    group_id: str
    says: AnyRecord | RebalanceSeen


def subscription(
    name: str, instance: str | None = None, topics: tuple[str, ...] = ("orders",)
) -> MemberSubscription:
    """Return the subscription of a member of the consumer protocol or of a share group."""
    return MemberSubscription(instance, None, name, "/10.0.0.1", topics, "", 60_000, None, False, 0)


def streams_member(
    name: str,
    *,
    client: str | None = None,
    process: str | None = None,
    instance: str | None = None,
    endpoint: str | None = None,
    rack: str | None = None,
) -> MemberSubscription:
    """Return the subscription of a member of a streams group, by default in a process of its own."""
    streams_fields = StreamsMember(0, process or f"process-{name}", endpoint, {})
    return MemberSubscription(
        instance, rack, client or name, "/10.0.0.1", (), "", 300_000, None, False, 0, streams_fields
    )


def has(
    name: str,
    epoch: int,
    *partitions: int,
    state: int = 0,
    revoking: tuple[int, ...] = (),
    kind: str = CONSUMER,
    standbys: tuple[int, ...] = (),
) -> MemberAssigned:
    """Return the assignment of a member."""
    assignment = MemberAssignment(
        epoch, epoch - 1, state, _held(kind, partitions, standbys), _held(kind, revoking, ())
    )
    return MemberAssigned(name, assignment, kind)


def target(name: str, *partitions: int, kind: str = CONSUMER, standbys: tuple[int, ...] = ()) -> MemberTarget:
    return MemberTarget(name, _held(kind, partitions, standbys), kind)


def _held(kind: str, partitions: tuple[int, ...], standbys: tuple[int, ...]) -> Partitions:
    key = task_key(ACTIVE, "0") if kind == STREAMS else ORDERS
    held = {key: list(partitions)} if partitions else {}
    return held | ({task_key(STANDBY, "0"): list(standbys)} if standbys else {})


def share_partitions(
    *initialized: int, initializing: tuple[int, ...] = (), deleting: bool = False
) -> SharePartitions:
    """Return the state of the partitions of `orders`."""
    return SharePartitions(
        {ORDERS: list(initializing)} if initializing else {},
        {ORDERS: list(initialized)} if initialized else {},
        (ORDERS,) if deleting else (),
        dict(NAMES) if initialized or initializing or deleting else {},
    )


def topology(epoch: int | None = 0) -> TopologySent:
    """Return a topology with one subtopology, which reads `orders`."""
    return TopologySent(epoch, {} if epoch is None else {"0": ("orders",)})


def streams_epoch(epoch: int, validated: int = 0, digest: int = 7, standbys: str = "0") -> GroupEpoch:
    """Return the group epoch of a streams group, with the topology epoch that was validated."""
    return GroupEpoch(epoch, digest, STREAMS, validated, {"num.standby.replicas": standbys})


def removed(name: str, kind: str) -> list[AnyRecord]:
    """Return the records that Kafka writes when a member leaves."""
    return [
        MemberAssigned(name, None, kind),
        MemberTarget(name, None, kind),
        MemberSubscribed(name, None, kind),
    ]


def settles(kind: str, epoch: int, **held: tuple[int, ...]) -> list[AnyRecord]:
    """Return the records of an epoch's target assignment, and of members that have reached it."""
    return [
        *(target(name, *numbers, kind=kind) for name, numbers in held.items()),
        TargetEpoch(epoch, kind),
        *(has(name, epoch, *numbers, kind=kind) for name, numbers in held.items()),
    ]


def group_removed(kind: str) -> list[AnyRecord]:
    """Return the records that Kafka writes when a group without members is deleted."""
    last: dict[str, list[AnyRecord]] = {
        CONSUMER: [GroupEpochRemoved()],
        SHARE: [SharePartitions({}, {}, (), {}), GroupEpochRemoved()],
        STREAMS: [GroupEpochRemoved(), topology(None)],
    }
    return [TargetEpoch(None, kind), *last[kind]]


def random_epochs(random: Random, group_id: str, steps: int, *, kind: str) -> Iterator[Said]:
    """Yield the records of a group's random life: members join and leave, partitions are initialized or the
    topology loses its topics, an epoch may get its target only with a later request, and an empty group may
    be deleted.
    """
    now_ms, epoch, target_epoch, members = 1_000, 1, 1, list[str]()
    validated, is_new = -1, True
    for _ in range(steps):
        now_ms += random.randrange(1, 5_000)
        records = list[AnyRecord]()
        before = members
        if not members or random.random() < 0.5:
            members = [m for m in members if random.random() < 0.7]
            members += [f"m{random.randrange(10**6)}"] if random.random() < 0.7 else []
        for leaver in (m for m in before if m not in members):
            records += removed(leaver, kind)
        is_streams = kind == STREAMS
        new = [m for m in members if m not in before]
        subscribed = streams_member if is_streams else subscription
        records += [MemberSubscribed(m, subscribed(m), kind) for m in new]
        if is_new and is_streams and members:
            records.append(topology())
        if kind == SHARE and random.random() < 0.3:
            count = random.randrange(_TASKS + 1)
            records.append(share_partitions(*range(count), initializing=tuple(range(count, _TASKS))))
        if is_streams:
            validated = 0 if random.random() < 0.8 else -1
        if records or random.random() < 0.3:
            epoch += 1
            records.append(streams_epoch(epoch, validated) if is_streams else GroupEpoch(epoch, 7, kind))
            is_new = False
        if members and epoch > target_epoch and random.random() < 0.8:
            target_epoch = epoch
            shares = {m: tuple(range(n, _TASKS, len(members))) for n, m in enumerate(members)}
            records += [target(m, *numbers, kind=kind) for m, numbers in shares.items()]
            records += [TargetEpoch(epoch, kind)]
            records += [has(m, epoch, *numbers, kind=kind) for m, numbers in shares.items()]
        yield from (Said(now_ms, group_id, record) for record in records)
        if not members and epoch > 1 and random.random() < 0.2:
            now_ms += 1
            yield from (Said(now_ms, group_id, record) for record in group_removed(kind))
            epoch, target_epoch, is_new = 1, 1, True
