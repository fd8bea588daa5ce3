"""The topics of a topology: those that it requires, and the numbers of partitions and tasks that follow from
the topics that exist. Rows KST4 to KST15.

The internal topics of an application are its repartition and changelog topics. A topology is configured, or
ready, when all its source topics exist, its internal topics exist with the right numbers of partitions, and
copartitioned topics have equal numbers. Source: InternalTopicManager, RepartitionTopics,
CopartitionedTopicsEnforcer, ChangelogTopics.

A row, such as KST5, is a rule of docs/rules-streams.md.
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

_NAMED_TOPICS = 3
"""The maximum number of topics that a text names."""

# A target of this many tasks takes seconds to compute. The requests of all groups wait during that time.
TASKS_MAX = 100_000


class InvalidTopologyError(Exception):
    """No topics can make the topology valid, so the request is refused (row KST15)."""


class ConfiguredTopology(Struct, frozen=True):
    """A topology whose topics exist and have the right numbers of partitions.

    `subtopologies` are sorted by id, and their internal topics have numbers of partitions. `tasks` is by the
    id of the subtopology, sorted.
    """

    subtopologies: list[Subtopology]
    tasks: dict[str, SubtopologyTasks]


class TopologyProblem(Struct, frozen=True):
    """The first reason why a topology is not ready: the status that members get, and a text for people."""

    status: StatusCode
    detail: str
    # Internal topics that are known not to exist, sorted by name.
    create: list[CreatableStreamsTopic] = []
    is_too_large: bool = False  # there are more tasks than a group may have


class _NotReady(Exception):
    """A reason why the topology is not ready. It ends the configuration."""

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
    """Return the fault of a malformed topology, or None. No client of Kafka sends such a topology, and in
    Kafka's coordinator it causes an exception (rows KSH16, KSB14).
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
    """Row KST3: return the first difference between the group's topology `known` and a member's topology
    `sent`, or None.

    The order of lists counts, too.
    """
    if known == sent:
        return None
    if known.epoch != sent.epoch:
        return f"topology epoch {sent.epoch} instead of {known.epoch}"
    known_by_id = {subtopology.subtopology_id: subtopology for subtopology in known.subtopologies}
    sent_by_id = {subtopology.subtopology_id: subtopology for subtopology in sent.subtopologies}
    for id_ in sorted(known_by_id.keys() ^ sent_by_id.keys()):
        return f"subtopology {id_} is {'missing' if id_ in known_by_id else 'new'}"
    for id_ in sorted(known_by_id):
        for field in Subtopology.__struct_fields__:
            if getattr(known_by_id[id_], field) != getattr(sent_by_id[id_], field):
                return f"subtopology {id_} has other {field.replace('_', ' ')}"
    return "the order of its subtopologies"


def configure(topology: StreamsTopology, known: KnownTopics) -> ConfiguredTopology | TopologyProblem:
    """Row KST5: return the topology with all its numbers of partitions and tasks, or the reason why it is not
    ready. `known` are the topics of the group.

    Raises InvalidTopologyError if it can never be ready.
    """
    try:
        return _Configuration(topology, known).configure()
    except _NotReady as error:
        return error.problem


class _Configuration:
    """The computation of a topology's partition counts and tasks. `known` are the topics of the group."""

    def __init__(self, topology: StreamsTopology, known: KnownTopics) -> None:
        self._subtopologies = sorted(topology.subtopologies, key=lambda s: s.subtopology_id)
        self._known = known
        # Partition counts of the topics that exist.
        self._existing_counts = {name: topic.partitions for name, topic in known.items() if topic is not None}
        self._decided_counts: dict[str, int] = {}  # partition counts of internal topics
        # Partition counts that the client has fixed for repartition topics.
        self._fixed_counts = {
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
        tasks = {subtopology.subtopology_id: self._tasks(subtopology) for subtopology in self._subtopologies}
        _check_task_count(tasks)
        self._decide_changelogs(tasks)
        internal = self._internal_topics()
        self._check_internal_topics(internal)
        return self._missing_internal_topics(internal) or ConfiguredTopology(
            [_with_counts(subtopology, internal) for subtopology in self._subtopologies], tasks
        )

    def _check_sources(self) -> None:
        """Row KST6: raise _NotReady unless all source topics exist."""
        sources = {name for subtopology in self._subtopologies for name in subtopology.source_topics}
        if missing := sorted(sources - self._existing_counts.keys()):
            status = StatusCode.MISSING_SOURCE_TOPICS
            raise _NotReady(status, f"Source topics are missing: {_listed(missing)}.")

    def _decide_repartition_topics(self) -> None:
        """Row KST7: decide the partition counts of repartition topics. A topic has the count that the client
        fixed, or else the largest count of the topics that are read by the subtopology which writes it.

        In each round, Kafka visits all subtopologies in order. A visit decides the counts of the topics that
        the subtopology writes, if it reads a topic whose count is known already. Later visits of the same
        subtopology decide nothing. So this function makes only the visits that decide, in the order of their
        rounds and indexes.
        """
        self._decided_counts.update(self._fixed_counts)
        readers: dict[str, list[int]] = {}  # indexes of subtopologies, by repartition topic
        for index, subtopology in enumerate(self._subtopologies):
            for name in _names(subtopology.repartition_source_topics):
                readers.setdefault(name, []).append(index)
        visits = [  # round and index
            (0, index)
            for index, subtopology in enumerate(self._subtopologies)
            if self._largest_count(subtopology) >= 0
        ]
        heapify(visits)
        scheduled = {index for _, index in visits}
        while visits:
            round_, index = heappop(visits)
            for sink in self._decide_sinks(self._subtopologies[index]):
                for reader in readers.get(sink, ()):
                    if reader not in scheduled:
                        scheduled.add(reader)
                        # This round has already passed a reader with a lower index.
                        reader_round = round_ + 1 if reader < index else round_
                        heappush(visits, (reader_round, reader))
        self._check_repartition_topics()

    def _decide_sinks(self, subtopology: Subtopology) -> list[str]:
        """Decide the counts of the topics that the subtopology writes. Return those that were undecided."""
        largest = self._largest_count(subtopology)
        undecided = [sink for sink in subtopology.repartition_sink_topics if sink not in self._decided_counts]
        self._decided_counts.update(dict.fromkeys(undecided, largest))
        return undecided

    def _largest_count(self, subtopology: Subtopology) -> int:
        """Return the largest known count of a topic that the subtopology reads, or -1."""
        counts = [self._existing_counts[name] for name in subtopology.source_topics]
        counts += [
            self._decided_counts.get(name, -1) for name in _names(subtopology.repartition_source_topics)
        ]
        return max(counts, default=-1)

    def _check_repartition_topics(self) -> None:
        """Raise InvalidTopologyError if the count of a repartition topic could not be decided."""
        written = {
            sink for subtopology in self._subtopologies for sink in subtopology.repartition_sink_topics
        }
        if undecided := sorted(written - self._decided_counts.keys()):
            raise InvalidTopologyError(
                "Repartition topics have no number of partitions, perhaps because of a loop:"
                f" {_listed(undecided)}."
            )
        read = {
            name
            for subtopology in self._subtopologies
            for name in _names(subtopology.repartition_source_topics)
        }
        if unwritten := sorted(read - self._decided_counts.keys()):
            raise InvalidTopologyError(
                f"Repartition topics have neither a number of partitions nor a writer: {_listed(unwritten)}."
            )

    def _copartition(self, subtopology: Subtopology, group: CopartitionGroup) -> None:
        """Rows KST8 and KST9: give copartitioned topics equal numbers of partitions. Raise _NotReady if
        source topics or fixed counts prevent this.

        The number is that of the source topics. Without source topics, it is the count that the client has
        fixed, or else the largest count of the repartition topics.
        """
        # A copartition group names topics by their indexes in the lists of the subtopology.
        repartition_sources = subtopology.repartition_source_topics
        repartition = [repartition_sources[index].name for index in group.repartition_source_topics]
        sources = [subtopology.source_topics[index] for index in group.source_topics]
        if sources:
            count = _common_count({name: self._count(name) for name in sources})
        elif not repartition:
            return
        elif self._fixed_counts:
            count = self._common_fixed_count
        else:
            count = max(self._count(name) for name in repartition)
        for name in repartition:
            if name in self._fixed_counts and self._count(name) != count:
                fixed = counted(self._count(name), "partition")
                raise _incorrectly_partitioned(
                    f"Repartition topic {name} has {fixed}, but topics copartitioned with it have {count}."
                )
            if name not in self._fixed_counts:
                self._decided_counts[name] = count

    @cached_property
    def _common_fixed_count(self) -> int:
        """The number of partitions that the client has fixed for repartition topics of any subtopology.

        Raises _NotReady unless the number is the same for all of these topics.
        """
        return _common_count(self._fixed_counts)

    def _count(self, name: str) -> int:
        """Return the number of partitions of a source or repartition topic."""
        count = self._existing_counts.get(name)
        return self._decided_counts[name] if count is None else count

    def _tasks(self, subtopology: Subtopology) -> SubtopologyTasks:
        """Row KST11: return the number of tasks of a subtopology. It has as many tasks as its largest topic
        has partitions.
        """
        topics = source_topics(subtopology)
        if not topics:
            raise InvalidTopologyError(f"Subtopology {subtopology.subtopology_id} has no source topic.")
        count = max(self._count(name) for name in topics)
        return SubtopologyTasks(count, bool(subtopology.state_changelog_topics))

    def _decide_changelogs(self, tasks: Mapping[str, SubtopologyTasks]) -> None:
        """Row KST10: give each changelog topic a partition for each task."""
        for subtopology in self._subtopologies:
            for name in _names(subtopology.state_changelog_topics):
                self._decided_counts[name] = tasks[subtopology.subtopology_id].count

    def _internal_topics(self) -> dict[str, StreamsTopicInfo]:
        """Return the internal topics by name, with their decided numbers of partitions."""
        topics_by_name = {
            topic.name: replace(topic, partitions=self._decided_counts[topic.name])
            for subtopology in self._subtopologies
            for topics in (subtopology.repartition_source_topics, subtopology.state_changelog_topics)
            for topic in topics
        }
        return dict(sorted(topics_by_name.items()))

    def _check_internal_topics(self, internal: Mapping[str, StreamsTopicInfo]) -> None:
        """Row KST12: raise _NotReady if an existing internal topic has a wrong number of partitions."""
        for name, topic in internal.items():
            count = self._existing_counts.get(name)
            if count is not None and count != topic.partitions:
                expected = counted(topic.partitions, "partition")
                raise _incorrectly_partitioned(
                    f"Internal topic {name} should have {expected}, but has {count}."
                )

    def _missing_internal_topics(self, internal: Mapping[str, StreamsTopicInfo]) -> TopologyProblem | None:
        """Row KST13: return the problem of internal topics that do not exist, or None."""
        missing = {name: topic for name, topic in internal.items() if name not in self._existing_counts}
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
                # A topic about which nothing was reported may exist.
                if name in self._known
            ],
        )


def _common_count(counts: Mapping[str, int]) -> int:
    """Return the number of partitions that all these topics have. Raise _NotReady if the numbers differ."""
    distinct_counts = set(counts.values())
    if len(distinct_counts) > 1:
        # The text has room for few topics, so it names one topic of each number first.
        first_with_count = {count: name for name, count in sorted(counts.items(), reverse=True)}
        names = sorted(counts, key=lambda name: (first_with_count[counts[name]] != name, name))
        texts = _listed([f"{name} has {counted(counts[name], 'partition')}" for name in names])
        raise _incorrectly_partitioned(f"Copartitioned topics have different numbers of partitions: {texts}.")
    return distinct_counts.pop()


def _check_task_count(tasks: Mapping[str, SubtopologyTasks]) -> None:
    """Row KSQ14: raise _NotReady if there are more than `TASKS_MAX` tasks."""
    number = sum(subtopology_tasks.count for subtopology_tasks in tasks.values())
    if number > TASKS_MAX:
        detail = f"The topology has {number} tasks. The maximum is {TASKS_MAX}."
        raise _NotReady(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail, is_too_large=True)


def _with_counts(subtopology: Subtopology, internal: Mapping[str, StreamsTopicInfo]) -> Subtopology:
    """Return the subtopology with the decided numbers of partitions of its `internal` topics."""
    return replace(
        subtopology,
        repartition_source_topics=[internal[topic.name] for topic in subtopology.repartition_source_topics],
        state_changelog_topics=[internal[topic.name] for topic in subtopology.state_changelog_topics],
    )


def _incorrectly_partitioned(detail: str) -> _NotReady:
    return _NotReady(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, detail)


def _listed(names: list[str]) -> str:
    return listed(names, "topic", _NAMED_TOPICS)
