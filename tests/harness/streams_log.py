"""Random logs of streams groups (`tests.harness.member_log`), whose clients restart in other processes,
change their topology, and give up revoked tasks.
"""

from dataclasses import dataclass, field

from msgspec import UNSET

from kafka_why.contract.kafka.requests import (
    AlterGroupConfigs,
    AnyRequest,
    CommittedPartition,
    CommittedTopic,
    DeleteGroup,
    OffsetCommit,
)
from kafka_why.contract.kafka.streams_responses import (
    StreamsEndpoint,
    StreamsGroupDescribe,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResponse,
    StreamsTopology,
    TaskIds,
    TaskOffset,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.streams_group import StreamsGroup
from state.kafka.streams_topics import required_topics
from tests.harness.member_log import LogClient, MemberLog
from tests.harness.streams_requests import topology_of

TOPOLOGIES = (
    topology_of("0: foo"),
    topology_of("0: foo +baz"),
    topology_of("0: foo; 1: bar +baz", 1),
    topology_of("0: missing"),
)
Tasks = dict[str, list[TaskIds]]


@dataclass
class Client(LogClient):
    """A client, the fields that it joins with, and its tasks by role."""

    process: str
    topology: StreamsTopology
    instance_id: str | None = None
    endpoint: StreamsEndpoint | None = None
    endpoint_epoch: int = -1
    has: Tasks = field(default_factory=dict)
    sent_tasks: bool = True  # in the last request
    needs: list[str] = field(default_factory=list)

    def reset(self) -> None:
        super().reset()
        self.has, self.endpoint_epoch = {}, -1

    def handle_answer(self, response: StreamsGroupHeartbeatResponse) -> None:
        fenced = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
        if response.error_code in (*fenced, ErrorCode.INVALID_REQUEST):
            self.reset()
        elif response.error_code or response.member_epoch < 0:
            self.is_full = True
        else:
            self.epoch, self.is_full = response.member_epoch, self.is_full and not self.sent_tasks
            self.endpoint_epoch = response.endpoint_information_epoch
            self.needs = response.needs_topics or []
            lists = (response.active_tasks, response.standby_tasks, response.warmup_tasks)
            assert len({tasks is None for tasks in lists}) == 1, "all three lists or none"
            if response.active_tasks is not None:
                self.has = {role: tasks or [] for role, tasks in zip("ASW", lists, strict=True)}
                self.is_full = True


class StreamsLog(MemberLog[Client, StreamsGroup]):
    """The play of one log of streams groups."""

    kind = StreamsGroup
    response = StreamsGroupHeartbeatResponse

    def prepare(self) -> None:
        self._topology = self.random.choice(TOPOLOGIES[:3])

    def client(self, number: int, group_id: str) -> Client:
        process = f"process-{self.random.randrange(4)}"
        instance_id = self.random.choice((None, None, f"instance-{number % 3}"))
        if instance_id is not None:
            # An instance id has one process at a time. No member with tasks moves to a process that has them.
            process = f"process-{number % 3}"
        endpoint = self.random.choice((None, StreamsEndpoint(f"host-{number}", 1)))
        return Client(number, group_id, process, self._topology, instance_id, endpoint)

    def odd_move(self, client: Client) -> None:
        match self.random.randrange(12):
            case 0 | 1:
                epoch = -2 if client.instance_id is not None and self.random.random() < 0.5 else -1
                self.leave(client, epoch)
            case 2:
                process = f"process-{self.random.randrange(4, 1_000_000)}"
                for other in self.clients:
                    if other is client or (other.instance_id and other.instance_id == client.instance_id):
                        other.process = process
                client.reset()
            case 3:
                self.cluster.change()
            case 4 | 5:
                self.watch(client.group_id)
            case 6:
                client.topology = self.random.choice(TOPOLOGIES)
                client.reset()
            case 7:
                client.endpoint = self.random.choice((None, StreamsEndpoint("other", 2)))
                client.reset()
            case _:
                self.send(None, self._stranger(client))

    def _stranger(self, client: Client) -> AnyRequest:
        match self.random.randrange(7):
            case 0:
                return self.heartbeat(client, client.epoch + self.random.choice((-2, -1, 1, 100)))
            case 1:
                return StreamsGroupDescribe(**client.common())
            case 2:
                return DeleteGroup(**client.common())
            case 3:
                configs = {"streams.num.standby.replicas": self.random.choice(("0", "1", "2", None))}
                return AlterGroupConfigs(**client.common(), configs=configs)
            case 4:
                configs = {"streams.initial.rebalance.delay.ms": self.random.choice(("0", "3000", None))}
                return AlterGroupConfigs(**client.common(), configs=configs)
            case 5:
                common = client.common()
                common["api_version"] = 9
                topics = [CommittedTopic("foo", [CommittedPartition(self.random.randrange(3), 7)])]
                return OffsetCommit(
                    **common, generation_id=client.epoch, member_id=client.member_id, topics=topics
                )
        return StreamsGroupHeartbeat(**client.common(), member_id="nobody", member_epoch=3)

    def heartbeat(self, client: Client, epoch: int) -> StreamsGroupHeartbeat:
        is_join = epoch == 0
        names = required_topics(client.topology) if is_join else client.needs
        sends_tasks = is_join or (epoch > 0 and client.is_full and self.random.random() < 0.8)
        client.sent_tasks = sends_tasks
        has: Tasks = {} if is_join else client.has
        offsets = [TaskOffset("0", 0, self.random.randrange(100))] if self.random.random() < 0.2 else None
        return StreamsGroupHeartbeat(
            **client.common(),
            member_id=client.member_id,
            member_epoch=epoch,
            endpoint_information_epoch=client.endpoint_epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=30_000 if is_join else -1,
            topology=client.topology if is_join else None,
            active_tasks=has.get("A", []) if sends_tasks else None,
            standby_tasks=has.get("S", []) if sends_tasks else None,
            warmup_tasks=has.get("W", []) if sends_tasks else None,
            process_id=client.process if is_join else None,
            user_endpoint=client.endpoint if is_join else None,
            task_offsets=offsets,
            topics=self.cluster.images(sorted(names)) if names else None,
            not_created=self.random.choice(("denied", "too many", UNSET)) if client.needs else UNSET,
        )
