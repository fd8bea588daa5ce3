"""The topics of a topology: those that it requires, and the numbers of partitions and tasks that follow from
the topics that exist. Rows KST4 to KST15.

A topology is configured when all its source topics exist, its repartition and changelog topics exist with the
right numbers of partitions, and copartitioned topics have equal numbers. Source: InternalTopicManager,
RepartitionTopics, CopartitionedTopicsEnforcer, ChangelogTopics.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from heapq import heapify, heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from assignors.kafka.sticky_tasks import SubtopologyTasks
from kafka_why.contract.kafka.snapshot import counted, listed
from kafka_why.contract.kafka.streams_responses import (
    CopartitionGroup,
    CreatableStreamsTopic,
    StatusCode,
    StreamsTopicInfo,
    StreamsTopology,
    Subtopology,
)
from state.kafka.group import Topic

KnownTopics = Mapping[str, Topic | None]
"""Topics by name, None for a topic that does not exist. A topic without an entry is unknown."""

_SHOWN = 3
"""The number of topics that a text names."""

# A target of this many tasks takes seconds to compute. The requests of all groups wait during that time.
TASKS_MAX = 100_000


class InvalidTopologyError(Exception):
    """No topics can make the topology valid, so the request is refused (row KST15)."""


class ConfiguredTopology(Struct, frozen=True):
    """A topology whose topics are right.

    `subtopologies` are sorted by id and have all numbers of partitions. `tasks` is by the id of the
    subtopology, sorted.
    """

    subtopologies: list[Subtopology]
    tasks: dict[str, SubtopologyTasks]


class TopologyProblem(Struct, frozen=True):
    """The first reason why a topology is not ready: the status of its members and a text for people."""

    status: StatusCode
    detail: str
    # Missing internal topics that are known not to exist, sorted by name.
    create: list[CreatableStreamsTopic] = []
    is_too_large: bool = False  # there are more tasks than a group may have


class _Problem(Exception):
    def __init__(self, status: StatusCode, detail: str, *, is_too_large: bool = False) -> None:
        super().__init__(detail)
        self.problem = TopologyProblem(status, detail, is_too_large=is_too_large)


def required_topics(topology: StreamsTopology) -> set[str]:
    """Return the names of the source, repartition source and changelog topics."""
    return {
        name
        for subtopology in topology.subtopologies
        for names in (source_topics(subtopology), _names(subtopology.state_changelog_topics))
        for name in names
    }


def named_topics(subtopology: Subtopology) -> set[str]:
    """Return the names of all topics of a subtopology. A client has to be authorized to describe them (rows
    KSH5, KSD5).
    """
    internal = (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
    return {*subtopology.source_topics, *subtopology.repartition_sink_topics, *_names(internal)}


def source_topics(subtopology: Subtopology) -> list[str]:
    """Return the names of the topics that the tasks of a subtopology read, without duplicates."""
    return list(dict.fromkeys([*subtopology.source_topics, *_names(subtopology.repartition_source_topics)]))


def _names(topics: Iterable[StreamsTopicInfo]) -> list[str]:
    return [topic.name for topic in topics]


def malformed_topology(topology: StreamsTopology) -> str | None:
    """Return the fault of a topology that no client of Kafka sends, or None. Kafka's coordinator raises an
    error for it (rows KSH16, KSB14).
    """
    if topology.epoch < 0:
        return f"The topology epoch is negative: {topology.epoch}."
    seen = set[str]()
    for subtopology in topology.subtopologies:
        if subtopology.subtopology_id in seen:
            return f"Subtopology {subtopology.subtopology_id} occurs twice."
        seen.add(subtopology.subtopology_id)
        for group in subtopology.copartition_groups:
            for indexes, topics in (
                (group.source_topics, subtopology.source_topics),
                (group.repartition_source_topics, subtopology.repartition_source_topics),
            ):
                for index in indexes:
                    if not 0 <= index < len(topics):
                        return f"Subtopology {subtopology.subtopology_id} has no copartitioned topic {index}."
    return None


def difference(known: StreamsTopology, sent: StreamsTopology) -> str | None:
    """Row KST3: return the first difference between a member's topology and the group's, or None.

    The order of lists counts, too.
    """
    if known == sent:
        return None
    if known.epoch != sent.epoch:
        return f"topology epoch {sent.epoch} instead of {known.epoch}"
    before = {subtopology.subtopology_id: subtopology for subtopology in known.subtopologies}
    after = {subtopology.subtopology_id: subtopology for subtopology in sent.subtopologies}
    for id_ in sorted(before.keys() ^ after.keys()):
        return f"subtopology {id_} is {'missing' if id_ in before else 'new'}"
    for id_ in sorted(before):
        for field in Subtopology.__struct_fields__:
            if getattr(before[id_], field) != getattr(after[id_], field):
                return f"subtopology {id_} has other {field.replace('_', ' ')}"
    return "the order of its subtopologies"


def configure(topology: StreamsTopology, known: KnownTopics) -> ConfiguredTopology | TopologyProblem:
    """Row KST5: return the topology with all its numbers of partitions and tasks, or why it is not ready.

    InvalidTopologyError: it can never be ready.
    """
    try:
        return _Configuration(topology, known).configure()
    except _Problem as found:
        return found.problem


class _Configuration:
    def __init__(self, topology: StreamsTopology, known: KnownTopics) -> None:
        self._subtopologies = sorted(topology.subtopologies, key=lambda one: one.subtopology_id)
        self._known = known
        self._existing = {name: topic.partitions for name, topic in known.items() if topic is not None}
        self._decided: dict[str, int] = {}  # numbers of internal topics
        self._fixed = {
            topic.name: topic.partitions
            for subtopology in self._subtopologies
            for topic in subtopology.repartition_source_topics
            if topic.partitions
        }

    def configure(self) -> ConfiguredTopology | TopologyProblem:
        self._check_sources()
        self._decide_repartition_topics()
        for subtopology in self._subtopologies:
            for group in subtopology.copartition_groups:
                self._copartition(subtopology, group)
        tasks = {one.subtopology_id: self._tasks(one) for one in self._subtopologies}
        _check_number(tasks)
        self._decide_changelogs(tasks)
        internal = self._internal_topics()
        self._check_internal_topics(internal)
        return self._missing(internal) or ConfiguredTopology(
            [_with_counts(one, internal) for one in self._subtopologies], tasks
        )

    def _check_sources(self) -> None:
        """Row KST6: all source topics exist."""
        sources = {name for one in self._subtopologies for name in one.source_topics}
        if missing := sorted(sources - self._existing.keys()):
            status = StatusCode.MISSING_SOURCE_TOPICS
            raise _Problem(status, f"Source topics are missing: {_listed(missing)}.")

    def _decide_repartition_topics(self) -> None:
        """Row KST7: a topic has the number that the client fixed, or else the largest number of the topics
        from which it is written.

        Kafka visits the subtopologies in rounds, and a visit decides all sinks if the number of any source is
        known. The heap has the visits that decide, by round and index, so each subtopology has one.
        """
        self._decided.update(self._fixed)
        readers: dict[str, list[int]] = {}
        for index, one in enumerate(self._subtopologies):
            for name in _names(one.repartition_source_topics):
                readers.setdefault(name, []).append(index)
        visits = [(0, index) for index, one in enumerate(self._subtopologies) if self._largest(one) >= 0]
        heapify(visits)
        seen = {index for _, index in visits}
        while visits:
            turn, index = heappop(visits)
            for sink in self._decide_sinks(self._subtopologies[index]):
                for reader in readers.get(sink, ()):
                    if reader not in seen:
                        seen.add(reader)
                        heappush(visits, (turn + (reader < index), reader))
        self._check_repartition_topics()

    def _decide_sinks(self, subtopology: Subtopology) -> list[str]:
        """Decide the numbers of the topics that the subtopology writes. Return those that were open."""
        largest = self._largest(subtopology)
        found = [sink for sink in subtopology.repartition_sink_topics if sink not in self._decided]
        self._decided.update(dict.fromkeys(found, largest))
        return found

    def _largest(self, subtopology: Subtopology) -> int:
        """Return the largest known number of a topic that the subtopology reads, or -1."""
        counts = [self._existing[name] for name in subtopology.source_topics]
        counts += [self._decided.get(name, -1) for name in _names(subtopology.repartition_source_topics)]
        return max(counts, default=-1)

    def _check_repartition_topics(self) -> None:
        written = {sink for one in self._subtopologies for sink in one.repartition_sink_topics}
        if undecided := sorted(written - self._decided.keys()):
            raise InvalidTopologyError(
                "Repartition topics have no number of partitions, perhaps because of a loop:"
                f" {_listed(undecided)}."
            )
        read = {name for one in self._subtopologies for name in _names(one.repartition_source_topics)}
        if unwritten := sorted(read - self._decided.keys()):
            raise InvalidTopologyError(
                f"Repartition topics have neither a number of partitions nor a writer: {_listed(unwritten)}."
            )

    def _copartition(self, subtopology: Subtopology, group: CopartitionGroup) -> None:
        """Rows KST8 and KST9: copartitioned topics have equal numbers of partitions."""
        read = subtopology.repartition_source_topics
        repartition = [read[index].name for index in group.repartition_source_topics]
        sources = [subtopology.source_topics[index] for index in group.source_topics]
        if sources:
            count = _same_count({name: self._count(name) for name in sources})
        elif not repartition:
            return
        elif self._fixed:
            count = self._fixed_count
        else:
            count = max(self._count(name) for name in repartition)
        for name in repartition:
            if name in self._fixed and self._count(name) != count:
                has = counted(self._count(name), "partition")
                raise _incorrect(
                    f"Repartition topic {name} has {has}, but topics copartitioned with it have {count}."
                )
            if name not in self._fixed:
                self._decided[name] = count

    @cached_property
    def _fixed_count(self) -> int:
        return _same_count(self._fixed)

    def _count(self, name: str) -> int:
        """Return the number of partitions of a source or repartition topic."""
        count = self._existing.get(name)
        return self._decided[name] if count is None else count

    def _tasks(self, subtopology: Subtopology) -> SubtopologyTasks:
        """Row KST11: a subtopology has as many tasks as its largest topic has partitions."""
        topics = source_topics(subtopology)
        if not topics:
            raise InvalidTopologyError(f"Subtopology {subtopology.subtopology_id} has no source topic.")
        count = max(self._count(name) for name in topics)
        return SubtopologyTasks(count, bool(subtopology.state_changelog_topics))

    def _decide_changelogs(self, tasks: Mapping[str, SubtopologyTasks]) -> None:
        """Row KST10: a changelog topic has a partition for each task."""
        for subtopology in self._subtopologies:
            for name in _names(subtopology.state_changelog_topics):
                self._decided[name] = tasks[subtopology.subtopology_id].count

    def _internal_topics(self) -> dict[str, StreamsTopicInfo]:
        found = {
            topic.name: replace(topic, partitions=self._decided[topic.name])
            for one in self._subtopologies
            for topics in (one.repartition_source_topics, one.state_changelog_topics)
            for topic in topics
        }
        return dict(sorted(found.items()))

    def _check_internal_topics(self, internal: Mapping[str, StreamsTopicInfo]) -> None:
        """Row KST12: existing internal topics have the right numbers of partitions."""
        for name, topic in internal.items():
            exists = self._existing.get(name)
            if exists is not None and exists != topic.partitions:
                expected = counted(topic.partitions, "partition")
                raise _incorrect(f"Internal topic {name} should have {expected}, but has {exists}.")

    def _missing(self, internal: Mapping[str, StreamsTopicInfo]) -> TopologyProblem | None:
        """Row KST13: return the problem of internal topics that do not exist, or None."""
        missing = {name: topic for name, topic in internal.items() if name not in self._existing}
        if not missing:
            return None
        return TopologyProblem(
            StatusCode.MISSING_INTERNAL_TOPICS,
            f"Internal topics are missing: {_listed(list(missing))}.",
            [
                CreatableStreamsTopic(
                    name, topic.partitions, topic.replication_factor or -1, topic.topic_configs
                )
                for name, topic in missing.items()
                # A topic of which nothing is known may exist.
                if name in self._known
            ],
        )


def _same_count(counts: Mapping[str, int]) -> int:
    found = set(counts.values())
    if len(found) > 1:
        # The first topic of each number is named first.
        first = {count: name for name, count in sorted(counts.items(), reverse=True)}
        names = sorted(counts, key=lambda name: (first[counts[name]] != name, name))
        each = _listed([f"{name} has {counted(counts[name], 'partition')}" for name in names])
        raise _incorrect(f"Copartitioned topics have different numbers of partitions: {each}.")
    return found.pop()


def _check_number(tasks: Mapping[str, SubtopologyTasks]) -> None:
    """Row KSQ14: the number of tasks is limited."""
    number = sum(one.count for one in tasks.values())
    if number > TASKS_MAX:
        detail = f"The topology has {number} tasks. The maximum is {TASKS_MAX}."
        raise _Problem(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail, is_too_large=True)


def _with_counts(subtopology: Subtopology, internal: Mapping[str, StreamsTopicInfo]) -> Subtopology:
    return replace(
        subtopology,
        repartition_source_topics=[internal[one.name] for one in subtopology.repartition_source_topics],
        state_changelog_topics=[internal[one.name] for one in subtopology.state_changelog_topics],
    )


def _incorrect(detail: str) -> _Problem:
    return _Problem(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _listed(names: list[str]) -> str:
    return listed(names, "topic", _SHOWN)
