"""The group whose assignment `assign` computes: an actual one, a hypothetical one, or the group of a past
rebalance, taken from its history.
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
from kafka_why.errors import UserFacingError
from kafka_why.numbers import INT32_MAX, is_whole_number, parse_whole_number
from kafka_why.why.model import Rebalance
from kafka_why.why.moves import Holdings, KnownState, read_holdings
from kafka_why.why.reconciling import flat
from kafka_why.why.segments import by_incarnation

MAX_PARTITIONS = 1_000_000
"""The maximum number of a topic's partitions, because the simulation has an object for each partition."""


class InputError(UserFacingError, ValueError):
    """The error when the input for `assign` is invalid."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    topics: tuple[str, ...]  # subscribed topics
    instance_id: str | None = None
    rack: str | None = None  # None if unknown


@dataclass(frozen=True)
class GroupSpec:
    """The topics of a group with their numbers of partitions, and its members.

    Raises InputError for inconsistent input.
    """

    topics: Mapping[str, int]
    members: Mapping[MemberId, Member]
    # The partitions that each member holds before the assignment. None if unknown. Members that have left may
    # be included.
    current: Holdings | None = None
    # Weights are at least 0. A partition without a weight has 0.
    weights: Mapping[TopicPartition, int] = field(default_factory=dict)
    # The racks of each partition of a topic, the leader's first. The racks of missing topics are unknown.
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
                raise InputError(f"weight {weight} of {_partition_name(partition)} is negative")
        self._check_current()

    def partitions(self) -> Iterator[TopicPartition]:
        """Yield all partitions in the order of `topics`, then of numbers."""
        return (TopicPartition(topic, n) for topic, count in self.topics.items() for n in range(count))

    def weight(self, partitions: Iterable[TopicPartition]) -> int:
        """Return the sum of the partitions' weights."""
        return sum(self.weights.get(partition, 0) for partition in partitions)

    def subscriptions(self, held: Holdings, generation_id: int) -> dict[MemberId, MemberSubscription]:
        """Return the members' JoinGroup subscriptions.

        `held` are the partitions that they own since `generation_id`.
        """
        # The sticky assignor reads the partitions in the user data, other assignors the owned partitions.
        return {
            member_id: _subscription_with_claim(member, tuple(sorted(held.get(member_id, ()))), generation_id)
            for member_id, member in self.members.items()
        }

    def partition_racks(self) -> PartitionRacks:
        """Return the racks as `Assignor.assign` takes them: by topic, a set of racks for each partition."""
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
        holder_counts = Counter(p for partitions in (self.current or {}).values() for p in partitions)
        for partition, number in holder_counts.items():
            self._check_partition(partition, "the current assignment")
            if number > 1:
                raise InputError(
                    f"the current assignment gives {_partition_name(partition)} to {number} members"
                )

    def _check_partition(self, partition: TopicPartition, where: str) -> None:
        """Raise InputError if the group has no such partition. `where` is what names the partition."""
        count = self.topics.get(partition.topic, 0)
        if not 0 <= partition.partition < count:
            contradiction = f"{partition.topic} has {count} partitions" if count else "there is no such topic"
            raise InputError(f"{where} has {_partition_name(partition)}, but {contradiction}")


def _check_topics(member_id: MemberId, subscribed: Sequence[str], topics: Mapping[str, int]) -> None:
    if not subscribed:
        raise InputError(f"member {member_id} does not subscribe to any topic")
    for topic in subscribed:
        if topic not in topics:
            raise InputError(
                f"member {member_id} subscribes to {topic}, which is none of the topics: {', '.join(topics)}"
            )


def _subscription_with_claim(
    member: Member, owned: tuple[TopicPartition, ...], generation_id: int
) -> MemberSubscription:
    user_data = encode_sticky_user_data(Claim(owned, generation_id))
    return MemberSubscription(
        Subscription(member.topics, user_data, owned, generation_id, member.rack), member.instance_id
    )


def _partition_name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


# The types of entries that end a rebalance.
_END_TYPES = (EntryType.STABLE, EntryType.EMPTY)


class Recorded(NamedTuple):
    """The group before and after a recorded rebalance."""

    # The members after the rebalance, those that left in it, and the partitions held before it.
    group: GroupSpec
    gone: list[MemberId]  # the members of `group` that left in the rebalance


def recorded_group(history: Iterable[HistoryEntry], rebalance: Rebalance) -> Recorded:
    """Return the group of a rebalance.

    A topic's number of partitions is inferred from the highest partition that was assigned before or after
    the rebalance. Raises InputError if the history lacks an assignment, subscriptions or partitions.
    """
    if rebalance.has_epochs:
        raise InputError(
            "the history of a group of the consumer protocol does not have its members' subscriptions; "
            "`assign --from-group` asks the coordinator for it"
        )
    incarnations = (one for one in by_incarnation(history) if one.incarnation == rebalance.incarnation)
    incarnation = next(incarnations, None)
    entries: Sequence[HistoryEntry] = [] if incarnation is None else incarnation.entries
    generation = rebalance.generation_to
    forming = _first_of_generation(entries, EntryType.COMPLETING_REBALANCE, generation)
    stable = _first_of_generation(entries, EntryType.STABLE, generation)
    if forming is None or stable is None or not forming.members:
        raise InputError("the history has no generation with an assignment for this rebalance")
    if forming.topics is None and forming.subscriptions is None:
        raise InputError("the history does not have the members' subscriptions")
    before = _held_before(entries, forming)
    after = read_holdings(stable.assignments or {})
    if before is None or after is None:
        raise InputError("the history does not have the partitions that the members held")
    topics = _partition_counts(before, after)
    subscriptions = {
        member_id: _subscribed_topics(forming, member_id, topics) for member_id in forming.members
    }
    gone = [member_id for member_id, held in before.items() if held and member_id not in subscriptions]
    for member_id in gone:  # the page offers to compare with and without them
        subscriptions[member_id] = tuple(dict.fromkeys(topic for topic, _ in sorted(before[member_id])))
    members = {member_id: Member(names) for member_id, names in subscriptions.items() if names}
    current = {member_id: partitions for member_id, partitions in before.items() if partitions}
    return Recorded(GroupSpec(topics, members, current or None), gone)


def _first_of_generation(
    entries: Iterable[HistoryEntry], type_: EntryType, generation: int | None
) -> HistoryEntry | None:
    return next((e for e in entries if e.type is type_ and e.generation == generation), None)


def _held_before(entries: Sequence[HistoryEntry], forming: HistoryEntry) -> Holdings | None:
    """Return the partitions held before the generation `forming`, by the members' ids in it.

    Return None if they are unknown.
    """
    earlier = [entry for entry in entries if entry.seq < forming.seq]
    end_indexes = [index for index, entry in enumerate(earlier) if entry.type in _END_TYPES]
    if not end_indexes:  # the first rebalance of a new group, or of a history without its beginning
        return {} if earlier and earlier[0].seq == 1 else None
    last_end = end_indexes[-1]
    state = KnownState()
    state.follow_static_members(earlier[:last_end])
    end = earlier[last_end]
    state.set_holdings({} if end.type is EntryType.EMPTY else read_holdings(end.assignments or {}))
    # A static member that has returned since then has a new id.
    state.follow_static_members(earlier[last_end:])
    return state.holdings


def _partition_counts(*holdings: Holdings) -> dict[str, int]:
    """Return each topic's number of partitions, inferred from the highest partition that a member holds."""
    counts: dict[str, int] = {}
    for held in holdings:
        for partitions in held.values():
            for topic, number in partitions:
                counts[topic] = max(counts.get(topic, 0), number + 1)
    return dict(sorted(counts.items()))


def _subscribed_topics(
    forming: HistoryEntry, member_id: MemberId, topics: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the member's subscribed topics that are in `topics`.

    An entry has subscriptions of single members only if they differ from the group's topics.
    """
    subscribed = (forming.subscriptions or {}).get(member_id, forming.topics or [])
    return tuple(topic for topic in subscribed if topic in topics)


# The input formats of a group: `orders:12,payments:6`, `a,b=orders+payments`, and JSON files.


MAX_MEMBERS = 100_000
"""The maximum number of members, if the user gives only a number."""

T = TypeVar("T")

ByTopic = dict[str, list[int]]


class _Member(Struct, forbid_unknown_fields=True):
    """A member in a JSON file."""

    topics: list[str] | None = None  # None for all topics
    instance_id: str | None = None
    rack: str | None = None
    assignment: ByTopic | None = None


class _Group(Struct, forbid_unknown_fields=True):
    """A group in a JSON file."""

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
        topics[topic] = _parse_count(number, f"{word!r} is not TOPIC:PARTITIONS", INT32_MAX)
    return topics


def parse_members(text: str, topics: Mapping[str, int]) -> dict[MemberId, Member]:
    """Parse `a,b=orders+payments`: member ids, and the topics of each. A member without topics has all.

    A number N gives the members c1 to cN. Raises InputError.
    """
    if is_whole_number(text):
        number = _parse_count(text, "too many members", MAX_MEMBERS)
        width = len(text)  # with leading zeros the ids sort by number
        return {f"c{n:0{width}}": Member(tuple(topics)) for n in range(1, number + 1)}
    members: dict[MemberId, Member] = {}
    for word in text.split(","):
        member_id, equals, names = word.strip().partition("=")
        if not member_id:
            raise InputError(f"{text!r} has a member without an id")
        if member_id in members:
            raise InputError(f"member {member_id} is named twice")
        members[member_id] = Member(tuple(filter(None, names.split("+"))) if equals else tuple(topics))
    return members


def _parse_count(text: str, refusal: str, at_most: int) -> int:
    """Return a whole number up to `at_most`. Raises InputError, whose message begins with `refusal`."""
    try:
        return parse_whole_number(text, 0, at_most)
    except ValueError as error:
        raise InputError(f"{refusal}: {error}") from error


def read_group(path: Path) -> GroupSpec:
    """Read a file that describes a whole group. Raises InputError."""
    group = read_json(path, _Group)
    members = {
        member_id: Member(tuple(group.topics if m.topics is None else m.topics), m.instance_id, m.rack)
        for member_id, m in group.members.items()
    }
    current: Holdings | None = None
    if any(m.assignment is not None for m in group.members.values()):
        current = {member_id: flat(m.assignment) for member_id, m in group.members.items()}
    return GroupSpec(group.topics, members, current, _weights_by_partition(group.weights), group.racks)


def group_file(group: GroupSpec) -> bytes:
    """Return a group as a file that `read_group` reads.

    Partitions that members who have left hold in `current` are left out.
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
    racks = {topic: [*map(list, partition_racks)] for topic, partition_racks in group.racks.items()}
    return msgspec.json.encode(_Group(dict(group.topics), members, weights, racks))


def read_weights(path: Path) -> dict[TopicPartition, int]:
    """Read a file with weights by partition number, such as `{"orders": [900, 30]}`. Raises InputError."""
    return _weights_by_partition(read_json(path, ByTopic))


def read_assignment(path: Path) -> Holdings:
    """Read a file with an assignment, such as `{"a": {"orders": [0, 1]}}`. Raises InputError."""
    assignments = read_json(path, dict[str, ByTopic])
    return {member_id: flat(assignment) for member_id, assignment in assignments.items()}


def read_json(path: Path, kind: type[T]) -> T:
    """Return a file's content. Raises InputError if it cannot be read or has another structure."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _weights_by_partition(by_topic: Mapping[str, list[int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, number): weight
        for topic, weights in by_topic.items()
        for number, weight in enumerate(weights)
    }
