"""Random logs of groups whose clients move between the classic protocol and the consumer protocol.

The clients of the two protocols are as in `classic_consumer` and `consumer_clients`.
"""

from collections import Counter
from random import Random
from typing import TypedDict

from msgspec import msgpack

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    AnyRequest,
    CommittedPartition,
    CommittedTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    Protocol,
    SyncGroup,
)
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import KafkaGroup
from state.timeline import Timeline
from tests.harness import batches, consumer_log
from tests.harness.classic_consumer import ClassicConsumer
from tests.harness.common import Common, kafka_effects, kafka_group
from tests.harness.consumer_clients import TOPICS, Cluster, Consumer, Partition
from tests.harness.played_log import INTERVAL_MS, PAUSES_MS
from tests.harness.random_log import GROUPS

_ENCODER = msgpack.Encoder()

SUBSCRIPTIONS = (("foo",), ("foo",), ("bar", "foo"), ("bar",), ("missing",))
SESSION_MS, REBALANCE_MS = 45_000, 30_000


class MemberIdentity(TypedDict):
    """The fields by which a request names its member."""

    member_id: str
    group_instance_id: str | None


AnyClient = Consumer | ClassicConsumer


class GrowingCluster(Cluster):
    """A cluster that deletes no topics, so that a name and an id always mean the same topic."""

    def change(self) -> None:
        self._before = dict(self.now)
        name = self._random.choice(TOPICS)
        image = self.now.get(name)
        if image is None:
            self._create(name)
        else:
            self.now[name] = TopicImage(image.id, image.partitions + self._random.randint(1, 2))


class MixedLog(consumer_log.ConsumerLog):
    """The play of one log. `conversions` counts the changes of groups' protocols, by the new protocol."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        super().__init__(seed, config)
        self.random = Random(seed)
        self.cluster = GrowingCluster(self.random)
        self.conversions: Counter[str] = Counter()
        self.timelines = {group_id: Timeline(group_id, None, config, step=self._step) for group_id in GROUPS}
        assignor = "cooperative-sticky" if self.random.random() < 0.5 else "range"
        self._protocols = (assignor, "roundrobin") if self.random.random() < 0.3 else (assignor,)
        self._client_of: dict[str, AnyClient] = {}
        self.mixed: list[AnyClient] = [
            self._random_client(n, GROUPS[0]) for n in range(self.random.randint(1, 6))
        ]
        self._oddness = self.random.choice((0.05, 0.15, 0.3))
        self._hurry = self.random.choice((0.5, 0.8, 0.95))
        self._begin(GROUPS[0])

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        """Take the core's step, and check that a change of the protocol does not change the offsets."""
        before = kafka_group(group)
        kind = type(before)
        offsets = None if before is None else _ENCODER.encode((before.offsets, before.pending, before.ended))
        effects = batches.checked_step(group, group_id, event, now_ms, config)
        after = kafka_group(effects.group)
        if before is not None and after is not None and type(after) is not kind:
            assert _ENCODER.encode((after.offsets, after.pending, after.ended)) == offsets
            self.conversions[type(after).__name__] += 1
        return effects

    def any_group(self, group_id: str) -> KafkaGroup | None:
        return kafka_group(self.timelines[group_id].group)

    def group(self, group_id: str) -> ConsumerGroup | None:
        group = self.any_group(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def settle(self, rounds: int) -> None:
        """Let every client behave well for this many rounds, while the watcher works and nothing changes."""
        self.cluster.rest()
        for n in range(rounds):
            if n in (0, rounds // 2):
                self._refresh_topics()
            self.pause(INTERVAL_MS)
            self._watch()
            for client in self.mixed:
                self.pause(1)
                self._beat_any(client, lossy=False)

    def _refresh_topics(self) -> None:
        """Let clients notice that topics have grown: they send full requests, or join again."""
        for client in self.mixed:
            if isinstance(client, Consumer):
                client.is_full = True
            elif client.is_running and client.awaited_request is None:
                client.must_join = True

    def _random_client(self, number: int, group_id: str) -> AnyClient:
        instance_id = self.random.choice((None, None, f"i{number}"))
        names = self.random.choice(SUBSCRIPTIONS)
        if self.random.random() < 0.5:
            return ClassicConsumer(
                number, group_id, instance_id, names, self._protocols, self.random.choice((9, 3))
            )
        pattern = self.random.choice(("", "", "foo.*"))
        return Consumer(number, group_id, instance_id, 1, None, names, pattern)

    def _begin(self, group_id: str) -> None:
        topics = [CommittedTopic("foo", [CommittedPartition(0, 7)], self.cluster.now["foo"].id)]
        self._append_and_apply(None, OffsetCommit(**self._common_of(group_id, -1, 9), topics=topics))

    def _move(self) -> None:
        self.pause(self.random.choice(PAUSES_MS[:5] if self.random.random() < self._hurry else PAUSES_MS))
        client = self.random.choice(self.mixed)
        if self.random.random() >= self._oddness:
            return self._beat_any(client, lossy=True)
        match self.random.randrange(7):
            case 0:
                self._leave_any(client)
            case 1:
                self._forget(client)
            case 2 | 3:
                self._roll(client)
            case 4:
                self.cluster.change()
            case 5:
                self._watch()
            case 6:
                self._commit(client)
        return None

    def _roll(self, client: AnyClient) -> None:
        """Restart the process on any protocol, with the same instance id. It may have crashed."""
        if self.random.random() < 0.7:
            self._leave_any(client)
        self._forget(client)
        new = self._random_client(client.number, client.group_id)
        new.instance_id, new.names = client.instance_id, client.names
        if isinstance(new, Consumer) and isinstance(client, Consumer):
            new.starts = client.starts
        elif isinstance(new, Consumer):
            new.starts = len(self.rows)
        self.mixed[client.number] = new

    def _forget(self, client: AnyClient) -> None:
        client.stop()
        self._client_of = {id_: other for id_, other in self._client_of.items() if other is not client}

    def _beat_any(self, client: AnyClient, *, lossy: bool) -> None:
        if isinstance(client, Consumer):
            return self._beat(client, lossy=lossy)
        if not client.is_running:
            client.start()
        if client.awaited_request is None or (lossy and self.random.random() < 0.1):
            self._send(client, self._next_request(client), lost=lossy and self.random.random() < 0.1)
        else:
            self._tick(client.group_id)
        return None

    def _next_request(self, client: ClassicConsumer) -> AnyRequest:
        common = self._common_of(client.group_id, client.number, client.api_version)
        identity: MemberIdentity = {"member_id": client.member_id, "group_instance_id": client.instance_id}
        if client.must_join:
            if not client.is_cooperative:
                client.uses = set()
            client.must_sync = False
            metadata = client.metadata()
            topics = {*client.names, *(partition.topic for partition in client.uses)}
            return JoinGroup(
                **common,
                **identity,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type=PROTOCOL_TYPE,
                protocols=[Protocol(name, metadata) for name in client.protocols],
                topics=self.cluster.images(sorted(topics)) if self.random.random() < 0.9 else None,
            )
        if client.must_sync:
            return SyncGroup(
                **common,
                **identity,
                generation_id=client.generation,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=client.protocol_name,
                assignments=client.assignments(self.cluster.now),
            )
        return Heartbeat(**common, **identity, generation_id=client.generation)

    def _common_of(self, group_id: str, number: int, api_version: int) -> Common:
        return {
            "group_id": group_id,
            "correlation_id": str(number),
            "reply_partition": 0,
            "api_version": api_version,
            "client_id": f"client-{number}",
        }

    def _leave_any(self, client: AnyClient) -> None:
        if isinstance(client, Consumer):
            return self._leave(client)
        leaving = LeavingMember(client.member_id, client.instance_id)
        if (
            client.is_running
            and client.member_id
            and (client.instance_id is None or self.random.random() < 0.3)
        ):
            common = self._common_of(client.group_id, client.number, 5)
            self._forget(client)
            self._append_and_apply(None, LeaveGroup(**common, members=[leaving]))
        return None

    def _commit(self, client: AnyClient) -> None:
        generation = client.epoch if isinstance(client, Consumer) else client.generation
        topics = [CommittedTopic("foo", [CommittedPartition(0, len(self.rows))], self.cluster.now["foo"].id)]
        self._append_and_apply(
            None,
            OffsetCommit(
                **self._common_of(client.group_id, client.number, 9),
                member_id=client.member_id,
                generation_id=generation,
                topics=topics,
            ),
        )

    def _send(self, client: AnyClient | None, request: AnyRequest, *, lost: bool = False) -> None:
        self._append_and_apply(client, request, lost=lost)

    def _append_and_apply(self, client: AnyClient | None, request: AnyRequest, *, lost: bool = False) -> None:
        """Append the request to the log and apply it. `client` gets the answer, perhaps later."""
        row = self._append(request)
        if client is not None:
            self._client_of = {id_: other for id_, other in self._client_of.items() if other is not client}
            if isinstance(client, ClassicConsumer):
                client.awaited_request = None if lost else row.request_id
            elif lost:
                client.is_full = True
            if not lost:
                self._client_of[row.request_id] = client
        self.timelines[request.group_id].apply(row)
        self._drain_effects(request.group_id)

    def _tick(self, group_id: str) -> None:
        self.timelines[group_id].fire_until(self.at_ms)
        self._drain_effects(group_id)

    def _drain_effects(self, group_id: str) -> None:
        timeline = self.timelines[group_id]
        assert not timeline.faults, timeline.faults[0].traceback
        for effects in kafka_effects(timeline.drain_effects()):
            self.rules.update(effects.rules)
            for entry in effects.history:
                if entry.type is EntryType.MEMBER_REMOVED:
                    self._forget_generation(entry.member_id)
            for reply in effects.replies:
                client = self._client_of.pop(reply.response.request, None)
                if isinstance(client, ClassicConsumer):
                    client.awaited_request = None
                    client.handle_answer(reply.response)
                elif client is not None:
                    client.handle_answer(reply.response, self.cluster)
        self.check_use(group_id)

    def _forget_generation(self, member_id: str | None) -> None:
        """Let a removed member forget the generation in which it synced.

        The group may start its generations anew, so that the same number means another generation later.
        """
        for client in self.mixed:
            if isinstance(client, ClassicConsumer) and client.member_id == member_id:
                client.synced_generation = -1

    def check_use(self, group_id: str) -> None:
        """Check that no two members in the group's generation use the same partition, and that the
        coordinator knows of each use.
        """
        group = self.any_group(group_id)
        if group is None:
            return
        used: dict[Partition, str] = {}
        for client in self.mixed:
            uses = self._use(group, client)
            for partition in uses:
                other = used.setdefault(partition, client.member_id)
                assert other == client.member_id, f"{other} and {client.member_id} use {partition}"

    def _use(self, group: KafkaGroup, client: AnyClient) -> set[Partition]:
        """Return what a member uses in its generation."""
        member = group.members.get(client.member_id)
        if member is None:
            return set()
        # A client that was away for long keeps its partitions until it syncs.
        generation = _generation(group, client.member_id)
        if isinstance(client, ClassicConsumer) and client.synced_generation != generation:
            return set()
        if isinstance(member, ClassicGroupMember):
            return set() if isinstance(client, Consumer) else self.by_id(client)
        assert isinstance(member, ConsumerMember)
        if isinstance(client, Consumer) != (member.classic is None):
            return set()
        held = {(id_, n) for p in (member.assigned, member.pending_revocation) for id_ in p for n in p[id_]}
        uses = self.by_id(client)
        assert uses <= held, f"{client.member_id} uses {uses - held} that it does not hold"
        return uses

    def by_id(self, client: AnyClient) -> set[Partition]:
        if isinstance(client, Consumer):
            return client.uses
        return {(self.cluster.now[topic].id.bytes, number) for topic, number in client.uses}


def _generation(group: KafkaGroup, member_id: str) -> int:
    return group.generation if isinstance(group, ClassicGroup) else group.members[member_id].member_epoch
