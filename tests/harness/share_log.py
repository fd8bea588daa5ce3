"""Random logs of share groups (`tests.harness.member_log`), with a share coordinator that handles the groups'
tasks late, fails, and answers twice.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from kafka_why.contract.kafka.requests import AlterGroupConfigs, AnyRequest, DeleteGroup
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
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from tests.harness.member_log import LogClient, MemberLog

SUBSCRIPTIONS = (("foo",), ("foo",), ("bar", "foo"), ("baz", "foo"), ("bar",), ("missing",))
ERRORS = (3, 15, 16, 31, 42, 124)


@dataclass
class Client(LogClient):
    """A client, the topics that it subscribes to, and the partitions that it fetches from."""

    names: tuple[str, ...]
    has: dict[UUID, list[int]] | None = None

    def reset(self) -> None:
        super().reset()
        self.has = None

    def handle_answer(self, response: ShareGroupHeartbeatResponse) -> None:
        if response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.reset()
        elif response.error_code:
            self.is_full = True
        else:
            self.epoch, self.is_full = response.member_epoch, False
            if response.assignment is not None:
                self.has = {topic.topic_id: topic.partitions for topic in response.assignment}


class ShareLog(MemberLog[Client, ShareGroup]):
    """The play of one log of share groups."""

    kind = ShareGroup
    response = ShareGroupHeartbeatResponse

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        super().__init__(seed, config)
        self._sent_results: list[ShareStateResult] = []

    def client(self, number: int, group_id: str) -> Client:
        return Client(number, group_id, self.random.choice(SUBSCRIPTIONS))

    def serve(self, group_id: str) -> None:
        super().serve(group_id)
        self._answer_tasks(group_id, works=True)

    def odd_move(self, client: Client) -> None:
        match self.random.randrange(13):
            case 0:
                self.leave(client)
            case 1:
                client.names, client.is_full = self.random.choice(SUBSCRIPTIONS), True
            case 2:
                self.cluster.change()
            case 3:
                self.watch(client.group_id)
            case 4 | 5 | 6:
                self._answer_tasks(client.group_id, works=False)
            case 7:
                self.send(None, self._stranger(client))
            case _:
                self._administer(client)

    def _administer(self, client: Client) -> None:
        """Send a random request of an administrator."""
        match self.random.randrange(5):
            case 0:
                self.send(None, DeleteGroup(**client.common()))
            case 1:
                configs = {"share.assignment.interval.ms": self.random.choice(("0", "2000", None))}
                self.send(None, AlterGroupConfigs(**client.common(), configs=configs))
            case 2:
                self._empty(client.group_id)
            case 3:
                self.send(None, self._random_alteration(client))
            case 4:
                names = self._some_topics()
                images = self.cluster.images(names)
                self.send(None, DeleteShareGroupOffsets(**client.common(), topics=names, images=images))

    def _empty(self, group_id: str) -> None:
        """Let all members leave, which an administrator's requests about offsets require."""
        group = self.group(group_id)
        for client in self.clients:
            if group is not None and client.group_id == group_id and client.member_id in group.members:
                self.leave(client)

    def _some_topics(self) -> list[str]:
        return self.random.sample(("foo", "bar", "baz", "missing"), self.random.randint(1, 2))

    def _random_alteration(self, client: Client) -> AlterShareGroupOffsets:
        names = self._some_topics()
        topics = [
            AlterShareTopic(name, [AlterSharePartition(n, 7) for n in range(3) if self.random.random() < 0.7])
            for name in names
        ]
        images = self.cluster.images(names) if self.random.random() < 0.9 else None
        return AlterShareGroupOffsets(**client.common(), topics=topics, images=images)

    def heartbeat(self, client: Client, epoch: int) -> ShareGroupHeartbeat:
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
                return self.heartbeat(client, epoch)
            case 1:
                return ShareGroupDescribe(**client.common())
            case 2:
                return DescribeShareGroupOffsets(**client.common())
        return ShareGroupHeartbeat(**client.common(), member_id="nobody", member_epoch=3)

    def _answer_tasks(self, group_id: str, *, works: bool) -> None:
        """Send the share coordinator's answer to an open task, or repeat the answer to an earlier task."""
        group = self.group(group_id)
        if group is not None and (works or self.random.random() < 0.9):
            for task in open_tasks(group) if works else open_tasks(group)[:1]:
                self._answer(group_id, task, works=works)
        elif self._sent_results:
            self.send(None, replace(self.random.choice(self._sent_results), group_id=group_id))

    def _answer(self, group_id: str, task: ShareTask, *, works: bool) -> None:
        outcomes = [
            ShareStatePartition(UUID(topic.topic_id), number, **self._outcome(works=works))
            for topic in task.topics
            for number in topic.partitions
            if works or self.random.random() < 0.8
        ]
        result = ShareStateResult(group_id=group_id, task=task.task, partitions=outcomes)
        self._sent_results.append(result)
        self.send(None, result)

    def _outcome(self, *, works: bool) -> dict[str, Any]:
        if works or self.random.random() < 0.7:
            return {}
        error = self.random.choice(ERRORS)
        if error != ErrorCode.FENCED_STATE_EPOCH:
            return {"error_code": error}
        start = self.random.choice((-1, 40))
        return {"error_code": error, "state_epoch": self.random.randrange(1, 60), "start_offset": start}
