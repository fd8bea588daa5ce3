"""The actual or hypothetical group whose assignment `assign` computes, or a group as its history has it as of
one rebalance.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    PartitionRacks,
    Subscription,
    TopicPartition,
    by_topic,
    encode_sticky_user_data,
)
from kafka_why.numbers import INT32_MAX, is_whole_number, parse_whole_number
from kafka_why.why.model import Rebalance
from kafka_why.why.moves import Holdings, KnownState, read_holdings
from kafka_why.why.segments import by_incarnation

MAX_PARTITIONS = 1_000_000
"""The maximum number of a topic's partitions, because the simulation has an object for each partition."""


class InputError(ValueError):
    """The error when the input for `assign` is invalid."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    topics: tuple[str, ...]  # that it subscribes to
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True)
class GroupSpec:
    """The topics of a group with their numbers of partitions, and its members.

    Raises InputError for inconsistent input.
    """

    topics: Mapping[str, int]
    members: Mapping[MemberId, Member]
    current: Holdings | None = None  # None if unknown; may have members that have left
    # Weights are at least 0. A partition without a weight has 0.
    weights: Mapping[TopicPartition, int] = field(default_factory=dict)
    # The racks of each partition of a topic, the leader's first. Those of missing topics are unknown.
    racks: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for topic, partitions in self.topics.items():
            if not 1 <= partitions <= MAX_PARTITIONS:
                raise InputError(
                    f"topic {topic} has {partitions} partitions, but needs at least one and at most "
                    f"{MAX_PARTITIONS}"
                )
        if not self.members:
            raise InputError("the group has no members")
        for member_id, member in self.members.items():
            _check_topics(member_id, member.topics, self.topics)
        for topic, racks in self.racks.items():
            if len(racks) != self.topics.get(topic):
                raise InputError(f"racks of topic {topic}: each of its partitions needs a list")
        for partition, weight in self.weights.items():
            self._check_partition(partition, "the list of weights")
            if weight < 0:
                raise InputError(f"weight {weight} of {_name(partition)} is negative")
        self._check_current()

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield all partitions in the order of `topics`, then of numbers."""
        return (TopicPartition(topic, n) for topic, count in self.topics.items() for n in range(count))

    def weight(self, partitions: Iterable[TopicPartition]) -> int:
        """Return the sum of the partitions' weights."""
        return sum(self.weights.get(partition, 0) for partition in partitions)

    def subscriptions(self, held: Holdings, generation_id: int) -> dict[MemberId, MemberSubscription]:
        """Return the JoinGroup subscriptions of members that held `held` since `generation_id`."""
        # The sticky assignor reads the partitions in the user data, other assignors the owned partitions.
        return {
            member_id: _subscription(member, tuple(sorted(held.get(member_id, ()))), generation_id)
            for member_id, member in self.members.items()
        }

    def partition_racks(self) -> PartitionRacks:
        """Return the racks in the form of an assignor's argument."""
        return {topic: [frozenset(racks) for racks in partitions] for topic, partitions in self.racks.items()}

    def without(self, member_id: MemberId) -> "GroupSpec":
        """Return the group without this member. Raises InputError if it was the last member.

        `current` still has the member's partitions.
        """
        return replace(self, members={m: member for m, member in self.members.items() if m != member_id})

    def with_member(self, member_id: MemberId, member: Member) -> "GroupSpec":
        """Return the group with another member. Raises InputError if the member id exists."""
        if member_id in self.members:
            raise InputError(f"{member_id} is already a member")
        return replace(self, members={**self.members, member_id: member})

    def _check_current(self) -> None:
        held = Counter(p for partitions in (self.current or {}).values() for p in partitions)
        for partition, holders in held.items():
            self._check_partition(partition, "the current assignment")
            if holders > 1:
                raise InputError(f"the current assignment gives {_name(partition)} to {holders} members")

    def _check_partition(self, partition: TopicPartition, where: str) -> None:
        count = self.topics.get(partition.topic, 0)
        if not 0 <= partition.partition < count:
            actual = f"{partition.topic} has {count} partitions" if count else "there is no such topic"
            raise InputError(f"{where} has {_name(partition)}, but {actual}")


def _check_topics(member_id: MemberId, wanted: Sequence[str], topics: Mapping[str, int]) -> None:
    if not wanted:
        raise InputError(f"member {member_id} does not subscribe to any topic")
    for topic in wanted:
        if topic not in topics:
            raise InputError(
                f"member {member_id} subscribes to {topic}, which is none of the topics: {', '.join(topics)}"
            )


def _subscription(
    member: Member, owned: tuple[TopicPartition, ...], generation_id: int
) -> MemberSubscription:
    user_data = encode_sticky_user_data(Claim(owned, generation_id))
    return MemberSubscription(
        Subscription(member.topics, user_data, owned, generation_id, member.rack), member.instance_id
    )


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


_ENDS = (EntryType.STABLE, EntryType.EMPTY)


class Recorded(NamedTuple):
    """The group before and after a recorded rebalance."""

    group: GroupSpec  # the members after the rebalance, with the partitions that they held before it
    gone: list[MemberId]  # the members that left in the rebalance


def recorded_group(history: Iterable[HistoryEntry], rebalance: Rebalance) -> Recorded:
    """Return the group of a rebalance.

    Raises InputError if the history lacks an assignment, subscriptions or partitions. A topic has as many
    partitions as the assignments before and after the rebalance name.
    """
    if rebalance.has_epochs:
        raise InputError(
            "the history of a group of the consumer protocol does not have its members' subscriptions; "
            "`assign --from-group` asks the coordinator for it"
        )
    life = next((life for life in by_incarnation(history) if life.incarnation == rebalance.incarnation), None)
    entries: Sequence[HistoryEntry] = [] if life is None else life.entries
    generation = rebalance.generation_to
    forming = _first(entries, EntryType.COMPLETING_REBALANCE, generation)
    stable = _first(entries, EntryType.STABLE, generation)
    if forming is None or stable is None or not forming.members:
        raise InputError("the history has no generation with an assignment for this rebalance")
    if forming.topics is None and forming.subscriptions is None:
        raise InputError("the history does not have the members' subscriptions")
    before = _held_before(entries, forming)
    after = read_holdings(stable.assignments or {})
    if before is None or after is None:
        raise InputError("the history does not have the partitions that the members held")
    topics = _topics(before, after)
    subscriptions = {member_id: _wanted(forming, member_id, topics) for member_id in forming.members}
    gone = [member_id for member_id, held in before.items() if held and member_id not in subscriptions]
    for member_id in gone:
        subscriptions[member_id] = tuple(dict.fromkeys(topic for topic, _ in sorted(before[member_id])))
    members = {member_id: Member(wanted) for member_id, wanted in subscriptions.items() if wanted}
    held = {member_id: partitions for member_id, partitions in before.items() if partitions}
    return Recorded(GroupSpec(topics, members, held or None), gone)


def _first(entries: Iterable[HistoryEntry], kind: EntryType, generation: int | None) -> HistoryEntry | None:
    return next((e for e in entries if e.type is kind and e.generation == generation), None)


def _held_before(entries: Sequence[HistoryEntry], forming: HistoryEntry) -> Holdings | None:
    earlier = [entry for entry in entries if entry.seq < forming.seq]
    ended = next((place for place in reversed(range(len(earlier))) if earlier[place].type in _ENDS), None)
    if ended is None:
        return {} if earlier and earlier[0].seq == 1 else None
    known = KnownState()
    known.follow_static_members(earlier[:ended])
    end = earlier[ended]
    known.set_holdings({} if end.type is EntryType.EMPTY else read_holdings(end.assignments or {}))
    known.follow_static_members(earlier[ended:])
    # By the members' ids in the new generation.
    return known.holdings


def _topics(*holdings: Holdings) -> dict[str, int]:
    counts: dict[str, int] = {}
    for held in holdings:
        for partitions in held.values():
            for topic, number in partitions:
                counts[topic] = max(counts.get(topic, 0), number + 1)
    return dict(sorted(counts.items()))


def _wanted(forming: HistoryEntry, member_id: MemberId, topics: Mapping[str, int]) -> tuple[str, ...]:
    wanted = (forming.subscriptions or {}).get(member_id, forming.topics or [])
    return tuple(topic for topic in wanted if topic in topics)


# The input formats of a group: `orders:12,payments:6`, `a,b=orders+payments`, and JSON files.


MAX_MEMBERS = 100_000
"""The maximum number of members, if the user gives only a number."""

T = TypeVar("T")

ByTopic = dict[str, list[int]]


class _Member(Struct, forbid_unknown_fields=True):
    topics: list[str] | None = None
    instance_id: str | None = None
    rack: str | None = None
    assignment: ByTopic | None = None


class _Group(Struct, forbid_unknown_fields=True):
    topics: dict[str, int]
    members: dict[str, _Member]
    weights: ByTopic = {}
    racks: dict[str, list[list[str]]] = {}


def parse_topics(text: str) -> dict[str, int]:
    """Parse `orders:12,payments:6`, or `@FILE` with the equivalent JSON object. Raises InputError."""
    if text.startswith("@"):
        return read_json(Path(text[1:]), dict[str, int])
    topics: dict[str, int] = {}
    for word in text.split(","):
        topic, colon, number = word.strip().rpartition(":")
        if not (topic and colon):
            raise InputError(f"{word!r} is not TOPIC:PARTITIONS")
        topics[topic] = _count(number, f"{word!r} is not TOPIC:PARTITIONS", INT32_MAX)
    return topics


def parse_members(text: str, topics: Mapping[str, int]) -> dict[MemberId, Member]:
    """Parse `a,b=orders+payments`: member ids, each with its topics or else all of `topics`.

    Raises InputError. A number N gives the members c1 to cN.
    """
    if is_whole_number(text):
        number, width = _count(text, "too many members", MAX_MEMBERS), len(text)
        return {f"c{n:0{width}}": Member(tuple(topics)) for n in range(1, number + 1)}
    members: dict[MemberId, Member] = {}
    for word in text.split(","):
        member_id, equals, wanted = word.strip().partition("=")
        if not member_id:
            raise InputError(f"{text!r} has a member without an id")
        if member_id in members:
            raise InputError(f"member {member_id} is named twice")
        members[member_id] = Member(tuple(filter(None, wanted.split("+"))) if equals else tuple(topics))
    return members


def _count(text: str, refusal: str, at_most: int) -> int:
    try:
        return parse_whole_number(text, 0, at_most)
    except ValueError as error:
        raise InputError(f"{refusal}: {error}") from error


def read_group(path: Path) -> GroupSpec:
    """Read the file of a whole group. Raises InputError."""
    read = read_json(path, _Group)
    known = any(member.assignment is not None for member in read.members.values())
    return GroupSpec(
        read.topics,
        {
            member_id: Member(tuple(read.topics if m.topics is None else m.topics), m.instance_id, m.rack)
            for member_id, m in read.members.items()
        },
        {name: partitions(m.assignment or {}) for name, m in read.members.items()} if known else None,
        _weights(read.weights),
        read.racks,
    )


def group_file(group: GroupSpec) -> bytes:
    """Return a group in the module's format.

    It has the partitions that members hold in `current`, and no others.
    """
    members = {
        member_id: _Member(
            list(member.topics),
            member.instance_id,
            member.rack,
            None if group.current is None else by_topic(group.current.get(member_id, ())),
        )
        for member_id, member in group.members.items()
    }
    weights = {
        topic: [group.weights.get(TopicPartition(topic, n), 0) for n in range(number)]
        for topic, number in group.topics.items()
        if group.weights
    }
    racks = {topic: [list(of_one) for of_one in of_topic] for topic, of_topic in group.racks.items()}
    return msgspec.json.encode(_Group(dict(group.topics), members, weights, racks))


def read_weights(path: Path) -> dict[TopicPartition, int]:
    """Read a file with weights by partition number, such as `{"orders": [900, 30]}`. Raises InputError."""
    return _weights(read_json(path, ByTopic))


def read_assignment(path: Path) -> Holdings:
    """Read a file with an assignment, such as `{"a": {"orders": [0, 1]}}`. Raises InputError."""
    read = read_json(path, dict[str, ByTopic])
    return {member_id: partitions(assignment) for member_id, assignment in read.items()}


def partitions(assignment: Mapping[str, list[int]]) -> frozenset[TopicPartition]:
    """Return the partitions of one member's assignment."""
    return frozenset(TopicPartition(topic, n) for topic, numbers in assignment.items() for n in numbers)


def read_json(path: Path, kind: type[T]) -> T:
    """Return a file's content. Raises InputError if it cannot be read or has another structure."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _weights(by_topic: Mapping[str, list[int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, number): weight
        for topic, weights in by_topic.items()
        for number, weight in enumerate(weights)
    }
