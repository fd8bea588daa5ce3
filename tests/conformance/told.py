"""The knowledge of a case's clients about one server, from its answers."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kafka_why.contract.protocols.subscriptions import ProtocolError, decode_assignment

TOPICS: Mapping[str, int] = {"orders": 2, "payments": 1, "trips": 12, "taxis": 12}
"""The topics of the scripts, and their numbers of partitions."""

OURS = "ours"
"""The side of this coordinator."""

NO_TOPIC = UUID(int=7)
"""A topic id that no topic has."""

NO_INDEX = 99
"""A partition that no topic has."""

ROLES = ("active", "standby", "warmup")
"""The roles of tasks."""

Partition = tuple[str, int]
"""A topic's name and a partition's index."""


@dataclass
class Holding:
    """The partitions that a client was last assigned, and those that it was assigned before."""

    assigned: tuple[Partition, ...] = ()
    before: tuple[Partition, ...] = ()

    def assign(self, assigned: Iterable[Partition]) -> None:
        """Store a new assignment."""
        self.before, self.assigned = self.assigned, tuple(sorted(assigned))

    def owned(self, text: str) -> tuple[Partition, ...]:
        """Return the partitions that `text` stands for.

        `none`; `now`: those assigned; `before`: those assigned before; `some`: all assigned ones but the
        first; `more`: those assigned and one of nobody's asking; or pairs such as `trips:0,trips:1`.
        """
        named = {
            "none": (),
            "now": self.assigned,
            "before": tuple(sorted({*self.before, *self.assigned})),
            "some": self.assigned[1:],
            "more": tuple(sorted({*self.assigned, ("trips", self.index("trips", "other"))})),
        }
        if text in named:
            return named[text]
        pairs = [pair.split(":") for pair in text.split(",")]
        return tuple((topic, int(index)) for topic, index in pairs)

    def index(self, topic: str, text: str) -> int:
        """Return the partition of `topic` that `text` stands for.

        `mine`, `mine2`: the first and the second assigned one; `kept`: the first that was assigned before,
        too; `gained`: that was not; `lost`: the first that is no longer assigned; `other`: the first that is
        neither assigned nor was before; else a number. Without such a partition an index
        that no topic has.
        """
        if text.lstrip("-").isdigit():
            return int(text)
        now = [index for name, index in self.assigned if name == topic]
        before = [index for name, index in self.before if name == topic]
        named = {
            "mine": now,
            "mine2": now[1:],
            "kept": [index for index in now if index in before],
            "gained": [index for index in now if index not in before],
            "lost": [index for index in before if index not in now],
            "other": [index for index in range(TOPICS.get(topic, 0)) if index not in {*now, *before}],
        }
        return next(iter(named[text]), NO_INDEX)


@dataclass
class Told:
    """The knowledge of a case's clients about one server.

    `prefix` begins the ids of the case's groups and the names of its own topics. `side` begins transactional
    ids, because both servers have the same brokers behind them. `producers` are producer id and epoch by
    client. `names` maps member ids to `@A1`; `ids` maps `@A1` and `@A` to member ids. `generations` (a
    consumer's member epoch, too), `protocols` (type, name) and `holdings` are by client; so are a
    streams member's `tasks` (by role and subtopology) and `endpoints` (the endpoint epoch). `totals`: the
    case compares sums over all topics. `loose`: it compares how evenly partitions are dealt, not who has how
    many, and epochs without those by which AlterShareGroupOffsets has `raised` them in each group, which
    Kafka does not do (a kept difference).
    """

    prefix: str
    topic_ids: dict[str, UUID]
    side: str = ""
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    protocols: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)
    holdings: dict[str, Holding] = field(default_factory=dict)
    tasks: dict[str, dict[str, dict[str, list[int]]]] = field(default_factory=dict)
    endpoints: dict[str, int] = field(default_factory=dict)
    totals: bool = False
    loose: bool = False
    raised: Counter[str] = field(default_factory=Counter)

    def learn(self, client: str, join_answer: Any) -> None:
        """Store the member id from a JoinGroup answer, and if it has no error the generation and protocol."""
        self._learn_id(client, join_answer.member_id)
        if join_answer.error_code == 0:
            self.generations[client] = join_answer.generation_id
            self.protocols[client] = (join_answer.protocol_type, join_answer.protocol_name)

    def learn_beat(self, client: str, answer: Any) -> None:
        """Store the member id, epoch and assignment from a ConsumerGroupHeartbeat answer without an error."""
        if answer.error_code:
            return
        self._learn_id(client, answer.member_id)
        self.generations[client] = answer.member_epoch
        if answer.assignment is not None:
            names = {topic_id: name for name, topic_id in self.topic_ids.items()}
            self.holding(client).assign(
                (names[topic.topic_id], index)
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            )

    def learn_share(self, client: str, answer: Any) -> None:
        """Store the member epoch from a ShareGroupHeartbeat answer without an error."""
        if answer.error_code == 0:
            self._learn_id(client, answer.member_id)
            self.generations[client] = answer.member_epoch

    def learn_stream(self, client: str, answer: Any) -> None:
        """Store the epochs and tasks from a StreamsGroupHeartbeat answer without an error."""
        if answer.error_code:
            return
        self._learn_id(client, answer.member_id)
        self.generations[client] = answer.member_epoch
        self.endpoints[client] = answer.endpoint_information_epoch
        if answer.active_tasks is not None:
            self.tasks[client] = {
                role: {one.subtopology_id: one.partitions for one in getattr(answer, f"{role}_tasks")}
                for role in ROLES
            }

    def learn_reset(self, group_id: str, answer: Any) -> None:
        """Note that AlterShareGroupOffsets has raised the group's epoch, if its answer says so."""
        codes = [partition.error_code for topic in answer.responses for partition in topic.partitions]
        self.raised[group_id] += self.loose and not answer.error_code and 0 in codes

    def learn_deletion(self, answer: Any) -> None:
        """Note that the epochs of a group start again, if the answer to DeleteGroups says so."""
        for result in answer.results:
            if not result.error_code:
                del self.raised[result.group_id]

    def learn_topics(self, answer: Any) -> None:
        """Store the ids of the created topics from an answer to CreateTopics."""
        self.topic_ids |= {topic.name: topic.topic_id for topic in answer.topics if topic.error_code == 0}

    def learn_assignment(self, client: str, answer: Any) -> None:
        """Store the assignment from a SyncGroup answer, if it is one of the consumer protocol."""
        try:
            assigned = decode_assignment(answer.assignment)
        except ProtocolError:
            return
        self.holding(client).assign((one.topic, one.partition) for one in assigned.partitions)

    def learn_producer(self, client: str, answer: Any) -> None:
        """Store the producer's id and epoch from an answer to InitProducerId or EndTxn."""
        if answer.error_code == 0 and answer.producer_id >= 0:
            self.producers[client] = answer.producer_id, answer.producer_epoch

    def transactional_id(self, client: str) -> str:
        return f"{self.side}-{self.prefix}{client}"

    def id(self, text: str) -> str:
        """Return the member id that `text` stands for, or `text` itself."""
        return self.ids.get(text, text)

    def group(self, name: str) -> str:
        """Return the group id of a name in this case. The empty name stays empty."""
        return f"{self.prefix}{name}" if name else ""

    def topic(self, name: str) -> str:
        """Return the topic that a name in this case stands for: `~x` is of this case alone."""
        return f"{self.prefix}{name[1:]}" if name.startswith("~") else name

    def topic_id(self, name: str) -> UUID:
        """Return the id of a topic, or an id that no topic has."""
        return self.topic_ids.get(name, NO_TOPIC)

    def own(self, client: str) -> str:
        """Return the client's latest member id, or an empty text if it has none."""
        return self.ids.get(f"@{client}", "")

    def holding(self, client: str) -> Holding:
        """Return a client's last and previous assignment."""
        return self.holdings.setdefault(client, Holding())

    def _learn_id(self, client: str, member_id: str) -> None:
        if member_id and member_id not in self.names:
            count = sum(name.startswith(f"@{client}") for name in self.names.values())
            self.names[member_id] = name = f"@{client}{count + 1}"
            self.ids[name] = member_id
        self.ids[f"@{client}"] = member_id
