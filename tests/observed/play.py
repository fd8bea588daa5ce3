"""A group that a script plays: its members, what was done to them, and what they saw."""

import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import ClassVar, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from kafka_why.now import now_ms
from kafka_why.why.model import CauseKind
from tests.harness.kafkas_groups import KafkasGroup
from tests.harness.waiting import wait_until
from tests.observed.member import Library, Member
from tests.observed.stage import Stage
from tests.observed.truth import Seen, Step, Truth

PARTITIONS = 6
SETTLE_TIMEOUT_S = 120.0
# A rebalance that follows another one begins with the next heartbeat or the next look at the topics.
QUIET_S = 2.5

JOINED, GONE = CauseKind.MEMBER_JOINED, CauseKind.MEMBER_GONE


class Play:
    """A group of a story. All it starts ends with the `with` block."""

    described_as: ClassVar[str | None] = None
    """The kind of group as Kafka's own client describes it, if librdkafka cannot."""
    also_at_start: ClassVar[tuple[CauseKind, ...]] = ()
    """Causes of rebalances that may follow on that of a new member."""

    def __init__(self, stage: Stage, story: str, library: Library, *, clients: str | None = None) -> None:
        self.stage, self.library = stage, library
        self.group_id = self.topic = story
        self.folder: Path = stage.folder / story
        self.folder.mkdir()
        self.members: dict[str, Member] = {}
        self._all: list[Member] = []
        self._paused: set[str] = set()
        self._partitions: dict[str, int] = {}
        self.truth = Truth(
            story=story,
            clients=clients or library.name,
            group_id=self.group_id,
            protocol=library.protocol,
            assignor=library.assignor,
        )

    def __enter__(self) -> Self:
        self._create_topic(self.topic)
        self.stage.begin_polls(self.group_id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stage.end_polls(self.group_id)
        if error is None and not self.truth.offsets and not self.truth.is_deleted:
            self.truth.offsets = self.stage.committed(self.group_id)
        for member in self._all:
            member.end()
        events = [
            Seen(member.client_id, event.at_ms, event.name, event.words)
            for member in self._all
            for event in member.events
        ]
        self.truth.seen = sorted(events, key=lambda seen: seen.at_ms)

    def create_topic(self, number: str) -> None:
        self._create_topic(f"{self.topic}-{number}")

    def _create_topic(self, topic: str) -> None:
        self.stage.create_topic(topic, PARTITIONS)
        self._partitions[topic] = PARTITIONS

    def start(
        self, client_id: str, library: Library | None = None, *, instance_id: str | None = None
    ) -> None:
        """Start a member, which joins."""
        causes = {JOINED: {client_id}, **{kind: set[str]() for kind in self.also_at_start}}
        with self.step(f"{client_id} starts", causes):
            self.begin(client_id, library, instance_id=instance_id)

    def begin(
        self,
        client_id: str,
        library: Library | None = None,
        *,
        instance_id: str | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start a member within a step."""
        if instance_id is not None:
            self.truth.instances[client_id] = instance_id
        member = Member(
            library or self.library,
            self.stage.servers,
            self.group_id,
            client_id,
            list(self._partitions)[:1],
            self.folder,
            instance_id=instance_id,
            settings=settings,
        )
        self.members[client_id] = member
        self._all.append(member)

    def leave(self, client_id: str) -> None:
        """Let a member leave and end."""
        # A static member of a classic group does not say that it ends.
        is_silent = client_id in self.truth.instances and self.truth.protocol == "classic"
        with self.step(
            f"{client_id} leaves", {GONE: {client_id}}, gone_how="expired" if is_silent else "left"
        ):
            self.members.pop(client_id).leave()

    def kill(self, client_id: str) -> None:
        """Kill a member. Its session expires."""
        with self.step(f"{client_id} is killed", {GONE: {client_id}}, gone_how="expired"):
            self.members.pop(client_id).kill()

    def pause(self, client_id: str) -> None:
        """Stop a member until its session has expired."""
        with self.step(f"{client_id} is stopped", {GONE: {client_id}}, gone_how="expired"):
            self.members[client_id].signal(signal.SIGSTOP)
            self._paused.add(client_id)

    def resume(self, client_id: str) -> None:
        """Continue a member, which joins again."""
        with self.step(f"{client_id} goes on", {JOINED: {client_id}}):
            self.members[client_id].signal(signal.SIGCONT)
            self._paused.remove(client_id)

    def restart(self, client_id: str) -> None:
        """Kill a static member and start it again, which is no rebalance."""
        member = self.members[client_id]
        causes = {CauseKind.STATIC_MEMBER_RETURNED: {client_id}}
        with self.step(f"static {client_id} starts again", causes, may_rest=True):
            self.members.pop(client_id).kill()
            self.begin(client_id, member.library, instance_id=member.instance_id)

    def subscribe_to_all(self, client_id: str) -> None:
        """Let a member subscribe to all topics."""
        topics = list(self._partitions)
        causes = {CauseKind.METADATA_CHANGED: {client_id}, CauseKind.SUBSCRIPTION_CHANGED: {client_id}}
        with self.step(f"{client_id} subscribes to {len(topics)} topics", causes):
            self.members[client_id].subscribe(topics)

    def grow(self, partitions: int = PARTITIONS + 2) -> None:
        """Add partitions to the topic."""
        causes = {CauseKind.TOPICS_CHANGED: set(self.members), CauseKind.METADATA_CHANGED: set(self.members)}
        causes[CauseKind.JOINED_AGAIN] = set(self.members)
        with self.step("the topic gets partitions", causes):
            self.add_partitions(partitions)

    def add_partitions(self, partitions: int) -> None:
        """Give the topic so many partitions in all."""
        self.stage.add_partitions(self.topic, partitions)
        self._partitions[self.topic] = partitions

    def commit(self, client_id: str) -> None:
        """Produce records and let a member commit what it has read."""
        self.produce()
        self.members[client_id].commit()
        self.stage.catch_up(self.group_id)

    def produce(self, keys: int = 30) -> None:
        """Produce a record for each key, spread over the partitions."""
        producer = Producer({"bootstrap.servers": self.stage.servers})
        for number in range(keys):
            partition = number % self._partitions[self.topic]
            producer.produce(self.topic, str(number), key=str(number), partition=partition)
        producer.flush(60)

    def finish(self) -> None:
        """Let all remaining members leave, one after the other."""
        for client_id in list(self.alive()):
            self.leave(client_id)

    def alive(self) -> Iterable[str]:
        """Return the client ids of the members."""
        return self.members

    def delete(self) -> None:
        """Delete the group, which has no members."""
        self.stage.delete_group(self.group_id)
        self.truth.is_deleted = True

    def commit_in_transactions(self) -> None:
        """Commit offset 3 of partition 0 in a transaction, 9 in one that is aborted, and 5 in one more."""
        servers = {"bootstrap.servers": self.stage.servers}
        consumer = Consumer({**servers, "group.id": self.group_id})
        producer = Producer({**servers, "transactional.id": self.group_id})
        producer.init_transactions()
        for offset, is_committed in ((3, True), (9, False), (5, True)):
            producer.begin_transaction()
            offsets = [TopicPartition(self.topic, 0, offset)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            (producer.commit_transaction if is_committed else producer.abort_transaction)()
        consumer.close()
        self.truth.offsets = {f"{self.topic}:0": 5}
        self.truth.never_committed = {f"{self.topic}:0": 9}

    @contextmanager
    def step(
        self,
        action: str,
        causes: Mapping[CauseKind, set[str]],
        *,
        may_rest: bool = False,
        gone_how: str | None = None,
    ) -> Iterator[None]:
        """Yield what the block does, until all is quiet again."""
        step = Step(action=action, causes=dict(causes), may_rest=may_rest, gone_how=gone_how)
        for client_id in {name for names in causes.values() for name in names} & self.members.keys():
            said = [event.at_ms for event in self.members[client_id].events if event.name == "committed"]
            step.commits_ms[client_id] = said[-1] if said else None
        step.began_ms = now_ms()
        yield
        self._settle(action, step.began_ms)
        self.stage.catch_up(self.group_id)
        step.ended_ms = now_ms()
        step.held = self.held()
        step.generations = {
            name: member.generation
            for name, member in self._living().items()
            if member.generation is not None and member.generation >= 0
        }
        self.truth.steps.append(step)

    def held(self) -> dict[str, list[str]]:
        """Return what each member has, by client id."""
        return {name: sorted(member.held) for name, member in self._living().items()}

    def state(self) -> tuple[str, int]:
        """Return the group's state and number of members according to the coordinator."""
        if self.described_as is None:
            return self.stage.state(self.group_id)
        found = self.described()
        return ("EMPTY", 0) if found is None else (found.state.upper(), len(found.held))

    def described(self) -> KafkasGroup | None:
        assert self.described_as is not None
        return self.stage.described(self.described_as, self.group_id)

    def _living(self) -> dict[str, Member]:
        return {name: member for name, member in self.members.items() if name not in self._paused}

    def _settle(self, action: str, began_ms: int) -> None:
        """Wait until the members have everything, the coordinator shows the group at rest, and nothing
        changes for a while.
        """
        wait_until(lambda: self.is_settled(began_ms), f"{self.group_id}: {action}", SETTLE_TIMEOUT_S)

    def is_settled(self, began_ms: int) -> bool:
        living = self._living()
        last_ms = max([began_ms, *(m.events[-1].at_ms for m in living.values() if m.events)])
        return (
            now_ms() - last_ms > QUIET_S * 1_000
            and self.is_all_held(living)
            and self.state() == (("STABLE" if living else "EMPTY"), len(living))
        )

    def is_all_held(self, living: Mapping[str, Member]) -> bool:
        held = [partition for member in living.values() for partition in member.held]
        topics = {topic for member in living.values() for topic in member.topics}
        expected = {f"{topic}:{number}" for topic in topics for number in range(self._partitions[topic])}
        return sorted(held) == sorted(expected) and all(member.held for member in living.values())
