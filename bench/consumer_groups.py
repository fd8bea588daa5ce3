"""The processor time of the core for one request of a consumer-protocol group, in microseconds.

There is no Spark, and requests are not decoded. Each figure is the median of several rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from bench.core import BEGIN_MS, CONFIG, GROUP_ID, QUICK_ROUNDS, ROUNDS, decode, encode
from kafka_why.contract.kafka.history import LEAVE_GROUP_MEMBER_EPOCH
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, TopicIdPartitions
from kafka_why.contract.kafka.responses import AssignedTopicPartitions, ConsumerGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import TopicImage
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import Effects
from state.timeline import Row, Timeline

SIZES = (50, 200, 1_000)
TOPICS = 4
PARTITIONS_PER_MEMBER = 4
INTERVAL_MS = 5_000
KEEP_ALIVES = 2_000


@dataclass
class Client:
    """A simulated member, with its state from the last response. It gives up revoked partitions at once."""

    member_id: str
    epoch: int = 0  # 0: it has not joined
    owned: list[AssignedTopicPartitions] = field(default_factory=list)
    has_new_assignment: bool = False  # which the next heartbeat acknowledges


class FormedConsumers:
    """A Stable consumer group of `members` members, formed by requests, and its clients."""

    def __init__(self, members: int) -> None:
        partitions_a_topic = members * PARTITIONS_PER_MEMBER // TOPICS
        self._topics = {f"topic-{n}": TopicImage(UUID(int=n + 1), partitions_a_topic) for n in range(TOPICS)}
        self._offset = 0
        self._members = members
        self.form()
        group = self.timeline.group
        assert isinstance(group, ConsumerGroup)
        self._state, self._formed_ms = encode(group), self.now_ms
        self._formed_clients = [(client.epoch, client.owned) for client in self.clients]

    def form(self) -> list[int]:
        """Let all members join a new group at once, until it is Stable. Return the ns of each request."""
        self.now_ms = BEGIN_MS
        self.clients = [Client(f"member-{n:06}") for n in range(self._members)]
        self.timeline = Timeline(GROUP_ID, None, CONFIG)
        return [*self.time_heartbeats(), *self.settle()]

    def settle(self) -> list[int]:
        """Apply heartbeats of all members until the group is Stable. Return the ns of each."""
        times_ns: list[int] = []
        while not (isinstance(self.timeline.group, ConsumerGroup) and self.timeline.group.state == "Stable"):
            times_ns += self.time_heartbeats()
        return times_ns

    def restore(self) -> "FormedConsumers":
        """Restore the group and its clients as they were when the group had formed."""
        state = self._state
        self.timeline = Timeline(GROUP_ID, decode(state), CONFIG, restore=lambda: decode(state))
        self.now_ms = self._formed_ms
        self.clients = [
            Client(f"member-{n:06}", epoch, owned) for n, (epoch, owned) in enumerate(self._formed_clients)
        ]
        return self

    def next_heartbeat(self, client: Client, **fields: object) -> Row:
        """Return the client's next heartbeat.

        It has all fields if the client joins, and otherwise only its partitions if these have changed.
        """
        self._offset += 1
        joins = client.epoch == 0
        owned = [TopicIdPartitions(topic.topic_id, topic.partitions) for topic in client.owned]
        request = ConsumerGroupHeartbeat(
            group_id=GROUP_ID,
            correlation_id="c",
            reply_partition=0,
            api_version=1,
            client_id="client",
            client_host="/10.0.0.1",
            member_id=client.member_id,
            **{
                "member_epoch": client.epoch,
                "rebalance_timeout_ms": 300_000 if joins else -1,
                "subscribed_topic_names": sorted(self._topics) if joins else None,
                "topic_partitions": owned if joins or client.has_new_assignment else None,
                "topics": dict(self._topics) if joins else None,
            }
            | fields,  # type: ignore[arg-type]
        )
        return Row(self.now_ms, f"requests-0-{self._offset}", request, 200)

    def time_heartbeat(self, client: Client) -> int:
        """Apply the client's next heartbeat, and return its ns."""
        row = self.next_heartbeat(client)
        began_ns = time.process_time_ns()
        self.timeline.apply(row)
        [effects] = self.timeline.drain_effects()
        ns = time.process_time_ns() - began_ns
        assert isinstance(effects, Effects)
        [reply] = effects.replies
        answer = reply.response
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        assert not answer.error_code, answer
        client.epoch, client.has_new_assignment = answer.member_epoch, answer.assignment is not None
        if answer.assignment is not None:
            client.owned = answer.assignment
        return ns

    def time_heartbeats(self) -> list[int]:
        """Apply heartbeats of all members, and acknowledgements of new assignments. Return the ns of each."""
        self.now_ms += INTERVAL_MS
        times_ns = []
        for client in self.clients:
            times_ns.append(self.time_heartbeat(client))
            if client.has_new_assignment:
                times_ns.append(self.time_heartbeat(client))
        return times_ns

    def keep_alives(self) -> list[int]:
        """Return the ns of heartbeats that change nothing, of the members in turn."""
        self.restore()
        members = len(self.clients)
        return [self.time_heartbeat(self.clients[n % members]) for n in range(max(KEEP_ALIVES, members))]

    def join(self) -> list[int]:
        """Let one more member join, so that a target assignment is computed. Return the ns."""
        self.restore()
        self.now_ms += INTERVAL_MS
        self.clients.append(Client("member-new"))
        return [self.time_heartbeat(self.clients[-1])]

    def settle_after_join(self) -> list[int]:
        """Let one more member join, and return the ns of the heartbeats until the group is Stable."""
        self.join()
        return self.settle()

    def leave(self) -> list[int]:
        """Let a member leave. Return the ns."""
        self.restore()
        row = self.next_heartbeat(self.clients[0], member_epoch=LEAVE_GROUP_MEMBER_EPOCH)
        began_ns = time.process_time_ns()
        self.timeline.apply(row)
        return [time.process_time_ns() - began_ns]


def figures(rounds: int) -> Iterator[tuple[str, float]]:
    """Yield the name of each figure and its µs per request."""
    for size in SIZES:
        group = FormedConsumers(size)
        # Functions that return the ns of each request.
        operations: dict[str, Callable[[], list[int]]] = {
            "keep-alive": group.keep_alives,
            "one more member joins": group.join,
            "a heartbeat until all have settled after it": group.settle_after_join,
            "a member leaves": group.leave,
            "a heartbeat of a group that forms": group.form,
        }
        for name, run in operations.items():
            yield f"{name}, {size:,} members", statistics.median(_mean_us(run()) for _ in range(rounds))


def _mean_us(ns: list[int]) -> float:
    return sum(ns) / len(ns) / 1_000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.consumer_groups", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take fewer rounds")
    rounds = QUICK_ROUNDS if parser.parse_args().quick else ROUNDS
    print(f"{PARTITIONS_PER_MEMBER} partitions a member, of {TOPICS} topics{'µs':>30}")
    for name, us in figures(rounds):
        print(f"{name:62}{us:10.2f}", flush=True)


if __name__ == "__main__":
    main()
