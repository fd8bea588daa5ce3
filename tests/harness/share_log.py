"""Random logs of share groups, with clients and a share coordinator that answers to the groups' tasks.

Clients behave as Kafka's: they join again after an error that fences them. Answers get lost, clients fall
silent, leave and change their topics, topics grow and are created again, groups are deleted, and strangers
send what no client would. The share coordinator is late, fails, and answers twice. A log is played against
the core, so that its requests have the epochs of that run; its rows are a log like any other.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from kafka_why.contract.kafka.requests import AlterGroupConfigs, AnyRequest, DeleteGroup, TopicMetadata
from kafka_why.contract.kafka.responses import ShareGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    AlterSharePartition,
    AlterShareTopic,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStatePartition,
    ShareStateResult,
)
from kafka_why.contract.kafka.snapshot import ShareTask
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.kafka.group import ConfigsOnly
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from tests.harness.common import Common
from tests.harness.played_log import INTERVAL_MS, PAUSES_MS, PlayedLog
from tests.harness.random_log import GROUPS

SUBSCRIPTIONS = (("foo",), ("foo",), ("bar", "foo"), ("baz", "foo"), ("bar",), ("missing",))
ERRORS = (3, 15, 16, 31, 42, 124)


@dataclass
class Client:
    """A client, and what it knows: its epoch, 0 before it joins, and the partitions that it fetches from."""

    number: int
    group_id: str
    names: tuple[str, ...]
    epoch: int = 0
    has: dict[UUID, list[int]] | None = None
    is_full: bool = True

    @property
    def member_id(self) -> str:
        return f"client-{self.number}"

    def common(self) -> Common:
        return {
            "group_id": self.group_id,
            "correlation_id": str(self.number),
            "reply_partition": 0,
            "api_version": 1,
            "client_id": self.member_id,
        }

    def learn(self, response: ShareGroupHeartbeatResponse) -> None:
        if response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.has, self.is_full = 0, None, True
        elif response.error_code:
            self.is_full = True
        else:
            self.epoch, self.is_full = response.member_epoch, False
            if response.assignment is not None:
                self.has = {topic.topic_id: topic.partitions for topic in response.assignment}


class ShareLog(PlayedLog):
    """The play of one log of share groups."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        super().__init__(seed, config)
        groups = self.random.choice((GROUPS[:1], GROUPS[:1], GROUPS[:2]))
        self.clients = [
            Client(n, self.random.choice(groups), self.random.choice(SUBSCRIPTIONS))
            for n in range(self.random.randint(1, 7))
        ]
        self._answered: list[ShareStateResult] = []
        self._oddness = self.random.choice((0.1, 0.3, 0.5))

    def play(self, moves: int) -> None:
        """Make this many random moves."""
        for _ in range(moves):
            self.at_ms += self.random.choice(PAUSES_MS)
            if self.random.random() >= self._oddness:
                self._beat(self.random.choice(self.clients), lossy=True)
            else:
                self._odd_move(self.random.choice(self.clients))

    def settle(self, rounds: int) -> None:
        """Let every client run and behave well for this many rounds, with a watcher, a share coordinator that
        does what it is asked for, and no change.
        """
        self.cluster.rest()
        for client in self.clients:
            client.is_full = True
        for _ in range(rounds):
            self.at_ms += INTERVAL_MS
            for group_id in GROUPS:
                self._watch(group_id)
                self._coordinate(group_id, works=True)
            for client in self.clients:
                self._beat(client, lossy=False)

    def group(self, group_id: str) -> ShareGroup | None:
        group = self.timelines[group_id].group
        assert group is None or isinstance(group, ShareGroup | ConfigsOnly)
        return group if isinstance(group, ShareGroup) else None

    def _odd_move(self, client: Client) -> None:
        match self.random.randrange(13):
            case 0:
                self._send(None, self._heartbeat(client, -1))
                client.epoch, client.has, client.is_full = 0, None, True
            case 1:
                client.names, client.is_full = self.random.choice(SUBSCRIPTIONS), True
            case 2:
                self.cluster.change()
            case 3:
                self._watch(client.group_id)
            case 4 | 5 | 6:
                self._coordinate(client.group_id, works=False)
            case 7:
                self._send(None, self._stranger(client))
            case _:
                self._administer(client)

    def _administer(self, client: Client) -> None:
        """Send a random request of an administrator."""
        match self.random.randrange(5):
            case 0:
                self._send(None, DeleteGroup(**client.common()))
            case 1:
                configs = {"share.assignment.interval.ms": self.random.choice(("0", "2000", None))}
                self._send(None, AlterGroupConfigs(**client.common(), configs=configs))
            case 2:
                self._empty(client.group_id)
            case 3:
                self._send(None, self._altering(client))
            case 4:
                names = self._some_topics()
                images = self.cluster.images(names)
                self._send(None, DeleteShareGroupOffsets(**client.common(), topics=names, images=images))

    def _empty(self, group_id: str) -> None:
        """Let all members leave, as before an administrator's requests about offsets."""
        group = self.group(group_id)
        for client in self.clients:
            if group is not None and client.group_id == group_id and client.member_id in group.members:
                self._send(None, self._heartbeat(client, -1))
                client.epoch, client.has, client.is_full = 0, None, True

    def _some_topics(self) -> list[str]:
        return self.random.sample(("foo", "bar", "baz", "missing"), self.random.randint(1, 2))

    def _altering(self, client: Client) -> AlterShareGroupOffsets:
        names = self._some_topics()
        topics = [
            AlterShareTopic(name, [AlterSharePartition(n, 7) for n in range(3) if self.random.random() < 0.7])
            for name in names
        ]
        images = self.cluster.images(names) if self.random.random() < 0.9 else None
        return AlterShareGroupOffsets(**client.common(), topics=topics, images=images)

    def _beat(self, client: Client, *, lossy: bool) -> None:
        request = self._heartbeat(client, client.epoch)
        is_lost = lossy and self.random.random() < 0.1
        self._send(None if is_lost else client, request)
        if is_lost:
            client.is_full = True

    def _heartbeat(self, client: Client, epoch: int) -> ShareGroupHeartbeat:
        names = list(client.names) if epoch >= 0 and client.is_full else None
        return ShareGroupHeartbeat(
            **client.common(),
            member_id=client.member_id,
            member_epoch=epoch,
            subscribed_topic_names=names,
            topics=None if names is None else self.cluster.images(names),
        )

    def _stranger(self, client: Client) -> AnyRequest:
        match self.random.randrange(4):
            case 0:
                epoch = client.epoch + self.random.choice((-2, -1, 1, 100))
                return self._heartbeat(client, epoch)
            case 1:
                return ShareGroupDescribe(**client.common())
            case 2:
                return DescribeShareGroupOffsets(**client.common())
        return ShareGroupHeartbeat(**client.common(), member_id="nobody", member_epoch=3)

    def _watch(self, group_id: str) -> None:
        """Send what the watcher sends: where a group's topics differ from the cluster's."""
        group = self.group(group_id)
        if group is not None and (topics := self._news_of_topics(group)):
            self._send(None, TopicMetadata(group_id=group_id, topics=topics))

    def _coordinate(self, group_id: str, *, works: bool) -> None:
        """Send the share coordinator's answer to an open task, or repeat the answer to a former one."""
        group = self.group(group_id)
        if group is not None and (works or self.random.random() < 0.9):
            for task in open_tasks(group) if works else open_tasks(group)[:1]:
                self._answer(group_id, task, works=works)
        elif self._answered:
            self._send(None, replace(self.random.choice(self._answered), group_id=group_id))

    def _answer(self, group_id: str, task: ShareTask, *, works: bool) -> None:
        outcomes = [
            ShareStatePartition(UUID(topic.topic_id), number, **self._outcome(works=works))
            for topic in task.topics
            for number in topic.partitions
            if works or self.random.random() < 0.8
        ]
        result = ShareStateResult(group_id=group_id, task=task.task, partitions=outcomes)
        self._answered.append(result)
        self._send(None, result)

    def _outcome(self, *, works: bool) -> dict[str, Any]:
        if works or self.random.random() < 0.7:
            return {}
        error = self.random.choice(ERRORS)
        if error != ErrorCode.FENCED_STATE_EPOCH:
            return {"error_code": error}
        start = self.random.choice((-1, 40))
        return {"error_code": error, "state_epoch": self.random.randrange(1, 60), "start_offset": start}

    def _send(self, client: Client | None, request: AnyRequest) -> None:
        """Append the request to the log and apply it."""
        for effects in self._handle(request):
            for reply in effects.replies:
                if client is not None and isinstance(reply.response, ShareGroupHeartbeatResponse):
                    client.learn(reply.response)
