"""Random logs of groups of the consumer protocol (KIP-848), and a model of what their clients use.

The clients behave as Kafka's consumer does: they revoke before they acknowledge, and start from nothing after
an error that fences them. Answers get lost, clients fall silent, die, return and change their topics, topics
grow and are created again, and strangers send what no client would. A log is played against the core, so that
its requests have the epochs of that run; its rows are a log like any other.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.kafka.consumer_group import (
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    ConsumerGroup,
)
from state.kafka.requests import (
    AnyRequest,
    ConsumerGroupHeartbeat,
    RegexResolution,
    RegexResolved,
    TopicIdPartitions,
    TopicImage,
    TopicImages,
    TopicMetadata,
)
from state.kafka.responses import AnyResponse, ConsumerGroupHeartbeatResponse
from state.timeline import Row, Timeline
from tests.harness import batches
from tests.harness.common import Common, kafka_effects
from tests.harness.random_log import GROUPS, PARTITION_OF

TOPICS = ("foo", "bar", "foobar", "baz")
PATTERNS = ("foo.*", "ba.", "(foo|baz)")
SUBSCRIPTIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("foo",), ""),
    (("foo",), ""),
    (("bar", "foo"), ""),
    (("baz", "foo"), ""),
    (("bar",), ""),
    (("missing",), ""),
    ((), ""),
    ((), "foo.*"),
    (("bar",), "foo.*"),
    ((), "(foo|baz)"),
)
BEGIN_MS = 1_000_000
INTERVAL_MS = 5_000
PAUSES_MS = (0, 0, 1, 400, 1_000, 5_000, 5_000, 20_000, 46_000)
FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)

Partition = tuple[bytes, int]


class Cluster:
    """The topics of the brokers. An image may be one change behind, as that of a gateway."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ids = 0
        self.now: dict[str, TopicImage] = {}
        for name in TOPICS[:3]:
            self._create(name)
        self._before = dict(self.now)

    def change(self) -> None:
        """Create, extend, delete or recreate a topic."""
        self._before = dict(self.now)
        name = self._random.choice(TOPICS)
        image = self.now.get(name)
        if image is None:
            self._create(name)
        elif (kind := self._random.random()) < 0.5:
            self.now[name] = TopicImage(image.id, image.partitions + self._random.randint(1, 3))
        elif kind < 0.75:
            del self.now[name]
        else:
            self._create(name)

    def rest(self) -> None:
        """No gateway is behind any more."""
        self._before = self.now

    def images(self, names: Iterable[str]) -> TopicImages:
        """What a gateway knows of the topics."""
        known = self._before if self._random.random() < 0.2 else self.now
        return {name: known.get(name) for name in names}

    def resolve(self, pattern: str, at_ms: int) -> RegexResolution:
        matches = {name: image for name, image in sorted(self.now.items()) if re.fullmatch(pattern, name)}
        return RegexResolution(matches, at_ms)

    def _create(self, name: str) -> None:
        self._ids += 1
        self.now[name] = TopicImage(UUID(int=self._ids), self._random.randint(1, 6))


@dataclass
class Consumer:
    """A client, and what it knows of its group from its answers.

    `uses` are the partitions that it reads from: those it was given, and those that it has to revoke until
    it acknowledges. `told` is its assignment by the last answer that had one.
    """

    number: int
    group_id: str
    instance_id: str | None
    api_version: int
    assignor: str | None
    names: tuple[str, ...]
    pattern: str
    is_slow: bool = False  # revokes nothing in time
    starts: int = 0
    member_id: str = ""
    epoch: int = 0
    runs: bool = False
    is_full: bool = True
    uses: set[Partition] = field(default_factory=set)
    told: set[Partition] = field(default_factory=set)

    def start(self) -> None:
        """A new process: version 0 takes the member id of the answer, version 1 makes its own."""
        self.starts += 1
        self.member_id = "" if self.api_version == 0 else f"client-{self.number}-{self.starts}"
        self.runs = True
        self.forget()

    def forget(self) -> None:
        """Begin from nothing, with the same id."""
        self.epoch, self.is_full = 0, True
        self.uses, self.told = set(), set()

    def stop(self) -> None:
        self.runs = False
        self.forget()

    def acknowledge(self) -> None:
        """Finish the revocation."""
        self.uses = set(self.told)

    def learn(self, response: AnyResponse) -> None:
        """Handle an answer as Kafka's consumer does."""
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        if response.error_code in FENCED:
            return self.forget()
        if response.error_code is not ErrorCode.NONE:
            return self.stop()  # such an error is fatal
        assert response.member_id is not None
        self.member_id, self.epoch, self.is_full = response.member_id, response.member_epoch, False
        if response.assignment is not None:
            self.told = {(t.topic_id.bytes, n) for t in response.assignment for n in t.partitions}
            self.uses |= self.told
        return None


class World:
    """The play of one log: `rows` is the log so far."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(self.random)
        self.rows: list[Row] = []
        self.rules: set[str] = set()  # that applied so far
        self.at_ms = BEGIN_MS
        self.timelines = {
            group_id: Timeline(group_id, None, config, step=batches.checked_step) for group_id in GROUPS
        }
        groups = self.random.choice((GROUPS[:1], GROUPS[:1], GROUPS[:1], GROUPS[:2]))
        self.clients = [self._client(n, self.random.choice(groups)) for n in range(self.random.randint(1, 7))]
        self._offsets = dict.fromkeys(PARTITION_OF.values(), -1)
        self._rests = False
        self._oddness = self.random.choice((0.02, 0.1, 0.3))
        self._hurry = self.random.choice((0.3, 0.8, 0.95))

    def _client(self, number: int, group_id: str) -> Consumer:
        names, pattern = self.random.choice(SUBSCRIPTIONS)
        return Consumer(
            number,
            group_id,
            self.random.choice((None, None, None, "i1", "i2")),
            self.random.choice((1, 1, 1, 0)),
            self.random.choice((None, None, "uniform", "range")),
            names,
            pattern if self.random.random() < 0.5 else "",
            is_slow=self.random.random() < 0.1,
        )

    def play(self, moves: int) -> None:
        """Make this many random moves. More moves begin with the same ones, so that a failure shrinks."""
        for _ in range(moves):
            self._move()

    def settle(self, rounds: int) -> None:
        """Let every client run and behave well for this many rounds, with a watcher and no change."""
        self._rests = True
        self.cluster.rest()
        for client in self.clients:
            client.is_full = True
        for _ in range(rounds):
            self.pause(INTERVAL_MS)
            self._watch()
            self._round(lossy=False)

    def group(self, group_id: str) -> ConsumerGroup | None:
        group = self.timelines[group_id].group
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    def pause(self, pause_ms: int) -> None:
        self.at_ms += pause_ms

    def _move(self) -> None:
        self.pause(self.random.choice(PAUSES_MS[:5] if self.random.random() < self._hurry else PAUSES_MS))
        if self.random.random() >= self._oddness:
            if self.random.random() < 0.3:
                self._round(lossy=True)
            else:
                self._beat(self.random.choice(self.clients), lossy=True)
            return
        client = self.random.choice(self.clients)
        match self.random.randrange(8):
            case 0:
                self._leave(client)
            case 1:
                client.stop()
            case 2 | 3:
                self._subscribe(client)
            case 4:
                self.cluster.change()
            case 5 | 6:
                self._watch()
            case 7:
                self._send(None, self._stranger(client))

    def _round(self, *, lossy: bool) -> None:
        for client in self.clients:
            self.pause(1)
            self._beat(client, lossy=lossy)

    def _beat(self, client: Consumer, *, lossy: bool) -> None:
        """The next heartbeat of a client. It starts if it does not run."""
        if not client.runs:
            client.start()
        in_time = not lossy or (not client.is_slow and self.random.random() < 0.7)
        acknowledges = client.uses != client.told and in_time
        if acknowledges:
            client.acknowledge()
        self._send(client, self._heartbeat(client, acknowledges), lost=lossy and self.random.random() < 0.1)

    def _heartbeat(self, client: Consumer, acknowledges: bool) -> ConsumerGroupHeartbeat:
        joins = client.epoch == 0
        is_full = client.is_full or joins
        names, pattern = list(client.names), client.pattern
        return ConsumerGroupHeartbeat(
            **self._common(client),
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=30_000 if is_full else -1,
            subscribed_topic_names=names if is_full else None,
            subscribed_topic_regex=pattern if is_full and client.api_version else None,
            server_assignor=client.assignor if is_full else None,
            topic_partitions=_partitions(client.uses) if is_full or acknowledges else None,
            topics=self.cluster.images(names)
            if is_full and (self._rests or self.random.random() < 0.9)
            else None,
            regex=self.cluster.resolve(pattern, self.at_ms)
            if is_full and pattern and client.api_version
            else None,
        )

    def _common(self, client: Consumer) -> Common:
        return {
            "group_id": client.group_id,
            "correlation_id": str(client.number),
            "reply_partition": 0,
            "api_version": client.api_version,
            "client_id": f"client-{client.number}",
        }

    def _leave(self, client: Consumer) -> None:
        """The client has stopped to read before it leaves, and does not wait for the answer."""
        if not client.runs or not client.member_id:
            return
        stays_away = client.instance_id is not None and self.random.random() < 0.7
        request = ConsumerGroupHeartbeat(
            **self._common(client),
            member_id=client.member_id,
            member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH if stays_away else LEAVE_GROUP_MEMBER_EPOCH,
            instance_id=client.instance_id,
        )
        client.stop()
        self._send(None, request)

    def _subscribe(self, client: Consumer) -> None:
        """The client changes its topics. Some clients revoke what they no longer want before they say so."""
        names, pattern = self.random.choice(SUBSCRIPTIONS)
        client.names, client.pattern = names, pattern if client.api_version else ""
        client.is_full = True
        if not pattern and self.random.random() < 0.5:
            ids = {image.id.bytes for name in names if (image := self.cluster.now.get(name))}
            client.uses = client.told = {partition for partition in client.uses if partition[0] in ids}

    def _stranger(self, client: Consumer) -> AnyRequest:
        """What no client would send, and what does not speak for a client that goes on."""
        common = self._common(client) | {"correlation_id": "-1"}
        group = self.group(client.group_id)
        liar = f"liar-{self.random.randrange(2)}"
        member = group.members.get(liar) if group is not None else None
        epoch = 0 if member is None else member.member_epoch + self.random.choice((0, 0, 0, -1, 1))
        owned = (
            []
            if member is None
            else [
                TopicIdPartitions(UUID(bytes=id_), [n for n in numbers if self.random.random() < 0.5])
                for id_, numbers in (member.assigned | member.pending_revocation).items()
            ]
        )
        match self.random.randrange(5):
            case 0:
                return ConsumerGroupHeartbeat(
                    **common, member_id=client.member_id or "nobody", member_epoch=client.epoch + 100
                )
            case 1:
                return ConsumerGroupHeartbeat(
                    **common, member_id=client.member_id or "nobody", member_epoch=LEAVE_GROUP_MEMBER_EPOCH
                )
            case 2:
                return ConsumerGroupHeartbeat(
                    **common,
                    member_id="another",
                    member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH,
                    instance_id=client.instance_id,
                )
        names, pattern = self.random.choice(SUBSCRIPTIONS)
        return ConsumerGroupHeartbeat(
            **common,
            member_id=liar,
            member_epoch=epoch,
            instance_id=client.instance_id if member is None and self.random.random() < 0.3 else None,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=list(names),
            subscribed_topic_regex=pattern,
            topic_partitions=owned if epoch else [],
            topics=self.cluster.images(names),
        )

    def _watch(self) -> None:
        """What the watcher sends: where a group's topics and patterns differ from the cluster's."""
        for group_id in GROUPS:
            group = self.group(group_id)
            if group is None:
                continue
            topics = {}
            for name in sorted({*group.topics, *group.unknown_topics()}):
                known, image = group.topics.get(name), self.cluster.now.get(name)
                seen = None if known is None else TopicImage(UUID(bytes=known.topic_id), known.partitions)
                if name not in group.topics or seen != image:
                    topics[name] = image
            if topics:
                self._send(None, TopicMetadata(group_id=group_id, topics=topics))
            patterns = {m.subscribed_topic_regex for m in group.members.values()} - {""}
            found = {pattern: self.cluster.resolve(pattern, self.at_ms) for pattern in sorted(patterns)}
            known_topics = {p: resolved.topics for p, resolved in group.resolved_regexes.items()}
            if any(known_topics.get(pattern) != sorted(result.topics) for pattern, result in found.items()):
                self._send(None, RegexResolved(group_id=group_id, patterns=found))

    def _send(self, client: Consumer | None, request: AnyRequest, *, lost: bool = False) -> None:
        """Append the request to the log and apply it. A client whose answer is lost asks in full again."""
        partition = PARTITION_OF[request.group_id]
        self._offsets[partition] += 1
        row = Row(self.at_ms, f"requests-{partition}-{self._offsets[partition]}", request)
        self.rows.append(row)
        timeline = self.timelines[request.group_id]
        timeline.apply(row)
        assert not timeline.faults, timeline.faults[0].traceback
        for effects in kafka_effects(timeline.take_effects()):
            self.rules.update(effects.rules)
            for reply in effects.replies:
                if client is not None and not lost:
                    client.learn(reply.response)
        if client is not None:
            client.is_full = client.is_full or lost
            self._check_topics(client)
        self._check_use(request.group_id)

    def _check_topics(self, client: Consumer) -> None:
        """After its own request, a member has no topic by name that it no longer subscribes to, even if the
        target is older than its subscription. (What a pattern matches changes without the member.)
        """
        group = self.group(client.group_id)
        member = group.members.get(client.member_id) if group is not None else None
        if group is None or member is None or member.subscribed_topic_regex:
            return
        names = {name for id_, name in group.names_by_id().items() if id_ in member.assigned}
        assert names <= set(member.subscribed_topic_names)

    def _check_use(self, group_id: str) -> None:
        """No partition is used by two members, and the coordinator knows of each use."""
        group = self.group(group_id)
        used: set[Partition] = set()
        for client in self.clients:
            member = group.members.get(client.member_id) if group and client.group_id == group_id else None
            if member is None:
                continue
            held = {
                (id_, n) for p in (member.assigned, member.pending_revocation) for id_ in p for n in p[id_]
            }
            assert client.uses <= held, f"{client.member_id} uses {client.uses - held} that it does not hold"
            assert not used & client.uses, f"{client.member_id} uses {used & client.uses} that others use"
            used |= client.uses


def _partitions(of: Iterable[Partition]) -> list[TopicIdPartitions]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(of):
        by_topic.setdefault(topic_id, []).append(number)
    return [TopicIdPartitions(UUID(bytes=topic_id), numbers) for topic_id, numbers in by_topic.items()]
