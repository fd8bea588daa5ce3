"""Random logs of streams groups, with clients that behave as Kafka's.

They join again after an error that fences them, and give up tasks that an answer takes away. Answers get
lost, clients fall silent, leave, restart as another process and change their topology, topics grow, vanish
and are created again, settings change, groups are deleted, and strangers send what no client would. A log is
played against the core, so that its requests have the epochs of that run; its rows are a log like any other.
"""

from dataclasses import dataclass, field

from kafka_why.contract.kafka.requests import (
    AlterGroupConfigs,
    AnyRequest,
    CommittedPartition,
    CommittedTopic,
    DeleteGroup,
    OffsetCommit,
    TopicMetadata,
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
from state.config import CoordinatorConfig
from state.kafka.group import ConfigsOnly
from state.kafka.streams_group import StreamsGroup
from state.kafka.streams_topics import required_topics
from tests.harness.common import Common
from tests.harness.played_log import INTERVAL_MS, PAUSES_MS, PlayedLog
from tests.harness.random_log import GROUPS
from tests.harness.streams_requests import topology_of

TOPOLOGIES = (
    topology_of("0: foo"),
    topology_of("0: foo +baz"),
    topology_of("0: foo; 1: bar +baz", 1),
    topology_of("0: missing"),
)
Tasks = dict[str, list[TaskIds]]


@dataclass
class Client:
    """A client, and what it knows: its epoch, 0 before it joins, and its tasks by role."""

    number: int
    group_id: str
    process: str
    topology: StreamsTopology
    instance_id: str | None = None
    endpoint: StreamsEndpoint | None = None
    epoch: int = 0
    endpoint_epoch: int = -1
    has: Tasks = field(default_factory=dict)
    is_changed: bool = True
    is_telling: bool = True  # True if its last request had its tasks
    needs: list[str] = field(default_factory=list)

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

    def reset(self) -> None:
        self.epoch, self.has, self.is_changed, self.endpoint_epoch = 0, {}, True, -1

    def learn(self, response: StreamsGroupHeartbeatResponse) -> None:
        fenced = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
        if response.error_code in (*fenced, ErrorCode.INVALID_REQUEST):
            self.reset()
        elif response.error_code or response.member_epoch < 0:
            self.is_changed = True
        else:
            self.epoch, self.is_changed = response.member_epoch, self.is_changed and not self.is_telling
            self.endpoint_epoch = response.endpoint_information_epoch
            self.needs = response.needs_topics or []
            lists = (response.active_tasks, response.standby_tasks, response.warmup_tasks)
            assert len({tasks is None for tasks in lists}) == 1, "all three lists or none"
            if response.active_tasks is not None:
                self.has = {role: tasks or [] for role, tasks in zip("ASW", lists, strict=True)}
                self.is_changed = True


class StreamsLog(PlayedLog):
    """The play of one log of streams groups."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        super().__init__(seed, config)
        groups = self.random.choice((GROUPS[:1], GROUPS[:1], GROUPS[:2]))
        topology = self.random.choice(TOPOLOGIES[:3])
        self.clients = [
            Client(
                n,
                self.random.choice(groups),
                f"process-{self.random.randrange(4)}",
                topology,
                self.random.choice((None, None, f"instance-{n % 3}")),
                self.random.choice((None, StreamsEndpoint(f"host-{n}", 1))),
            )
            for n in range(self.random.randint(1, 7))
        ]
        # No member with tasks moves to a process that has them: an instance id has one process at a time.
        for client in self.clients:
            if client.instance_id is not None:
                client.process = f"process-{client.number % 3}"
        self._oddness = self.random.choice((0.1, 0.3, 0.5))

    def play(self, moves: int) -> None:
        """Make this many random moves."""
        for _ in range(moves):
            self.at_ms += self.random.choice(PAUSES_MS)
            if self.random.random() >= self._oddness:
                self._beat(self.random.choice(self.clients), is_lossy=True)
            else:
                self._odd_move(self.random.choice(self.clients))

    def settle(self, rounds: int) -> None:
        """Let every client run and behave well for this many rounds, with a watcher and no change."""
        self.cluster.rest()
        for client in self.clients:
            client.is_changed = True
        for _ in range(rounds):
            self.at_ms += INTERVAL_MS
            for group_id in GROUPS:
                self._watch(group_id)
            for client in self.clients:
                self._beat(client, is_lossy=False)

    def group(self, group_id: str) -> StreamsGroup | None:
        group = self.timelines[group_id].group
        assert group is None or isinstance(group, StreamsGroup | ConfigsOnly)
        return group if isinstance(group, StreamsGroup) else None

    def _odd_move(self, client: Client) -> None:
        match self.random.randrange(12):
            case 0 | 1:
                epoch = -2 if client.instance_id is not None and self.random.random() < 0.5 else -1
                self._send(None, self._heartbeat(client, epoch))
                client.reset()
            case 2:
                process = f"process-{self.random.randrange(4, 1_000_000)}"
                for other in self.clients:
                    if other is client or None is not other.instance_id == client.instance_id:
                        other.process = process
                client.reset()
            case 3:
                self.cluster.change()
            case 4 | 5:
                self._watch(client.group_id)
            case 6:
                client.topology = self.random.choice(TOPOLOGIES)
                client.reset()
            case 7:
                client.endpoint = self.random.choice((None, StreamsEndpoint("other", 2)))
                client.reset()
            case _:
                self._send(None, self._stranger(client))

    def _stranger(self, client: Client) -> AnyRequest:
        match self.random.randrange(7):
            case 0:
                return self._heartbeat(client, client.epoch + self.random.choice((-2, -1, 1, 100)))
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
                    **common,
                    generation_id=client.epoch,
                    member_id=client.member_id,
                    topics=topics,
                )
        return StreamsGroupHeartbeat(**client.common(), member_id="nobody", member_epoch=3)

    def _beat(self, client: Client, *, is_lossy: bool) -> None:
        request = self._heartbeat(client, client.epoch)
        is_lost = is_lossy and self.random.random() < 0.1
        self._send(None if is_lost else client, request)
        if is_lost:
            client.is_changed = True

    def _heartbeat(self, client: Client, epoch: int) -> StreamsGroupHeartbeat:
        is_join = epoch == 0
        names = required_topics(client.topology) if is_join else client.needs
        tells = is_join or (epoch > 0 and client.is_changed and self.random.random() < 0.8)
        client.is_telling = tells
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
            active_tasks=has.get("A", []) if tells else None,
            standby_tasks=has.get("S", []) if tells else None,
            warmup_tasks=has.get("W", []) if tells else None,
            process_id=client.process if is_join else None,
            user_endpoint=client.endpoint if is_join else None,
            task_offsets=offsets,
            topics=self.cluster.images(sorted(names)) if names else None,
        )

    def _watch(self, group_id: str) -> None:
        """Send what the watcher sends: where a group's topics differ from the cluster's."""
        group = self.group(group_id)
        if group is not None and (topics := self._news_of_topics(group)):
            self._send(None, TopicMetadata(group_id=group_id, topics=topics))

    def _send(self, client: Client | None, request: AnyRequest) -> None:
        """Append the request to the log and apply it."""
        for effects in self._handle(request):
            for reply in effects.replies:
                if client is not None and isinstance(reply.response, StreamsGroupHeartbeatResponse):
                    client.learn(reply.response)
