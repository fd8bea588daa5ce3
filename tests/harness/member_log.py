"""Random logs of groups whose members send only heartbeats: the base of `share_log` and `streams_log`.

Clients behave as Kafka's: they join again after an error that fences them. Answers get lost, clients fall
silent, leave and change their subscriptions, topics grow, are deleted and recreated, settings change, groups
are deleted, and strangers send what no client would.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kafka_why.contract.kafka.requests import AnyRequest, TopicMetadata
from state.config import CoordinatorConfig
from state.kafka.group import ConfigsOnly
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from tests.harness.common import Common
from tests.harness.consumer_clients import common_of
from tests.harness.played_log import INTERVAL_MS, PAUSES_MS, PlayedLog
from tests.harness.random_log import GROUPS


@dataclass
class LogClient:
    """A client with its member epoch, 0 before it joins. With `is_full` its next request has all fields."""

    number: int
    group_id: str
    api_version: int = field(default=1, init=False)
    epoch: int = field(default=0, init=False)
    is_full: bool = field(default=True, init=False)

    @property
    def member_id(self) -> str:
        return f"client-{self.number}"

    def common(self) -> Common:
        return common_of(self)

    def reset(self) -> None:
        """Forget the membership except for the id."""
        self.epoch, self.is_full = 0, True

    def handle_answer(self, response: Any) -> None:
        """Read the answer to a heartbeat."""
        raise NotImplementedError


Client = TypeVar("Client", bound=LogClient)
Group = TypeVar("Group", ShareGroup, StreamsGroup)


class MemberLog(PlayedLog, Generic[Client, Group]):
    """The play of one log of groups of a `kind`. Clients read answers of the type `response`."""

    kind: type[Group]
    response: type

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        super().__init__(seed, config)
        groups = self.random.choice((GROUPS[:1], GROUPS[:1], GROUPS[:2]))
        self.prepare()
        self.clients = [self.client(n, self.random.choice(groups)) for n in range(self.random.randint(1, 7))]
        self._oddness = self.random.choice((0.1, 0.3, 0.5))

    def prepare(self) -> None:
        """Choose the values that all clients have in common."""

    @abstractmethod
    def client(self, number: int, group_id: str) -> Client:
        """Return a random client."""

    @abstractmethod
    def heartbeat(self, client: Client, epoch: int) -> AnyRequest:
        """Return the next heartbeat of a client, with this epoch."""

    @abstractmethod
    def odd_move(self, client: Client) -> None:
        """Do what no well-behaved client does."""

    def play(self, moves: int) -> None:
        for _ in range(moves):
            self.at_ms += self.random.choice(PAUSES_MS)
            if self.random.random() >= self._oddness:
                self._beat(self.random.choice(self.clients), is_lossy=True)
            else:
                self.odd_move(self.random.choice(self.clients))

    def settle(self, rounds: int) -> None:
        """Let every client behave well for this many rounds, while all servers work and nothing changes."""
        self.cluster.rest()
        for client in self.clients:
            client.is_full = True
        for _ in range(rounds):
            self.at_ms += INTERVAL_MS
            for group_id in GROUPS:
                self.serve(group_id)
            for client in self.clients:
                self._beat(client, is_lossy=False)

    def group(self, group_id: str) -> Group | None:
        group = self.timelines[group_id].group
        assert group is None or isinstance(group, self.kind | ConfigsOnly)
        return group if isinstance(group, self.kind) else None

    def serve(self, group_id: str) -> None:
        """Send the requests of all servers about a group."""
        self.watch(group_id)

    def watch(self, group_id: str) -> None:
        """Send a group the topics in which it differs from the cluster, as the watcher does."""
        group = self.group(group_id)
        if group is not None and (topics := self._changed_topics(group)):
            self.send(None, TopicMetadata(group_id=group_id, topics=topics))

    def leave(self, client: Client, epoch: int = -1) -> None:
        self.send(None, self.heartbeat(client, epoch))
        client.reset()

    def send(self, client: Client | None, request: AnyRequest) -> None:
        """Append the request to the log and apply it. The client reads the answer."""
        for effects in self._handle(request):
            for reply in effects.replies:
                if client is not None and isinstance(reply.response, self.response):
                    client.handle_answer(reply.response)

    def _beat(self, client: Client, *, is_lossy: bool) -> None:
        request = self.heartbeat(client, client.epoch)
        is_lost = is_lossy and self.random.random() < 0.1
        self.send(None if is_lost else client, request)
        if is_lost:
            client.is_full = True
