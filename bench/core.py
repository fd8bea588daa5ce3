"""The processor time of the core in microseconds, without Spark and without the decoding of requests.

Each figure is the median of rounds. The limits hold on 2 cores of a quiet machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from assignors.kafka.api import Subscription
from assignors.kafka.consumer_protocol import encode_subscription
from checkpoints import codec
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup, AnyRequest
from state.kafka.group import Group, GroupState
from state.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    Heartbeat,
    JoinGroup,
    MemberAssignment,
    OffsetCommit,
    Protocol,
    SyncGroup,
)
from state.kafka.responses import JoinGroupResponse
from state.timeline import Row, Timeline

GROUP_ID = "group"
CONFIG = CoordinatorConfig()
BEGIN_MS = 1_700_000_000_000
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
FORMED_AFTER_MS = 10_000  # the initial delay is over, and no session is
ASSIGNMENT_BYTES = 100
TOPICS = 2
ROUNDS, QUICK_ROUNDS = 15, 3
STEPS = 2_000
TOPICS_MANY = 1_000


@dataclass(frozen=True)
class Figure:
    """A name, the µs of one operation, and the limit in µs, None if the operation has none."""

    name: str
    us: float
    limit_us: float | None = None

    @property
    def held(self) -> bool:
        return self.limit_us is None or self.us <= self.limit_us

    def text(self) -> str:
        limit = "" if self.limit_us is None else f"{self.limit_us:8.0f}  {'held' if self.held else 'NOT HELD'}"
        return f"{self.name:58}{self.us:10.2f}{limit}"


def main() -> None:
    """Print the table; the exit code is 0 if all limits were kept."""
    parser = argparse.ArgumentParser(prog="python -m bench.core", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take fewer rounds")
    rounds = QUICK_ROUNDS if parser.parse_args().quick else ROUNDS
    print(f"{'':58}{'µs':>10}{'limit':>8}")
    held = []
    for figure in figures(rounds):
        print(figure.text(), flush=True)
        held.append(figure.held)
    sys.exit(0 if all(held) else 1)


def figures(rounds: int) -> Iterator[Figure]:
    """Yield every figure."""
    for size in (1, 100, 1_000):
        group = Formed(size)
        yield Figure(f"Heartbeat, {size:,} members", group.per_row(group.heartbeats(), rounds), 5)
    group = Formed(1, topics=TOPICS_MANY)
    yield Figure(f"Heartbeat, {TOPICS_MANY:,} topics", group.per_row(group.heartbeats(), rounds), 5)
    yield Figure(f"OffsetCommit, {TOPICS_MANY:,} topics", group.per_row(group.commits(), rounds))
    for size in (10, 100, 1_000, 5_000):
        group = Formed(size, members_protocols=1)
        yield Figure(f"JoinGroup, {size:,} members join again", group.per_row(group.rejoins(), rounds), 20)
    for size in (10, 100, 1_000, 5_000):
        group = Formed(size)
        yield Figure(f"JoinGroup, new members of {size:,}", group.per_row(group.newcomers(), rounds), 20)
    for size in (10, 1_000, 5_000):
        group = Formed(size)
        yield Figure(f"SyncGroup, {size:,} members", group.per_sync(rounds))
    for size in (1, 3, 100):
        group = Formed(size)
        yield Figure(f"decode, {size} members", group.per_decode(rounds))
        yield Figure(f"encode, {size} members", group.per_encode(rounds))
        limit_us = 100 if size == 100 else None
        yield Figure(f"decode and encode, {size} members", group.per_decode_and_encode(rounds), limit_us)
        yield Figure(f"a call with one Heartbeat, {size} members", group.per_call(rounds))
    group = Formed(100)
    for topic in range(100):
        group.commit_all(topic)
    yield Figure("Heartbeat, 100 members with 1,000 offsets", group.per_row(group.heartbeats(20_000), rounds), 5)
    yield Figure("a call with one Heartbeat, the same", group.per_call(rounds))


class Formed:
    """A Stable group of `members` members, made by requests."""

    def __init__(self, members: int, topics: int = TOPICS, members_protocols: int = 2) -> None:
        names = tuple(f"topic-{n:04}" for n in range(topics))
        metadata = encode_subscription(Subscription(names), version=1)
        self._protocols = [Protocol("range", metadata), Protocol("cooperative-sticky", metadata)]
        self._offset = 0
        self._topics = names
        timeline = Timeline(GROUP_ID, None, CONFIG)
        for number in range(members):
            timeline.apply(self._row(BEGIN_MS, self._join("", f"client-{number}")))
        timeline.fire_until(BEGIN_MS + FORMED_AFTER_MS)
        assert timeline.group is not None
        self.now_ms = timeline.group.clock_ms
        self.ids = [
            reply.response.member_id
            for effects in timeline.take_effects()
            for reply in effects.replies
            if isinstance(reply.response, JoinGroupResponse)
        ]
        self.completing = encode(timeline.group)
        for sync in self._syncs():
            timeline.apply(sync)
        assert isinstance(timeline.group, Group)
        assert timeline.group.state is GroupState.STABLE
        assert len(timeline.group.members) == members
        self.state = encode(timeline.group)

    def _row(self, at_ms: int, request: AnyRequest) -> Row:
        self._offset += 1
        return Row(at_ms, f"requests-0-{self._offset}", request, 400)

    def _join(self, member_id: str, client_id: str) -> JoinGroup:
        return JoinGroup(
            group_id=GROUP_ID,
            correlation_id="c",
            reply_partition=0,
            api_version=3,
            client_id=client_id,
            client_host="/10.0.0.1",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=member_id,
            protocol_type="consumer",
            protocols=self._protocols,
        )

    def _syncs(self) -> list[Row]:
        given = [MemberAssignment(member_id, bytes(ASSIGNMENT_BYTES)) for member_id in self.ids]
        return [
            self._row(
                self.now_ms,
                SyncGroup(
                    group_id=GROUP_ID,
                    correlation_id="c",
                    reply_partition=0,
                    api_version=3,
                    generation_id=1,
                    member_id=member_id,
                    assignments=given if member_id == self.ids[0] else [],
                ),
            )
            for member_id in [*self.ids[1:], self.ids[0]]
        ]

    def heartbeats(self, number: int = STEPS) -> list[Row]:
        return [
            self._row(
                self.now_ms + n,
                Heartbeat(
                    group_id=GROUP_ID,
                    correlation_id="c",
                    reply_partition=0,
                    api_version=4,
                    generation_id=1,
                    member_id=self.ids[n % len(self.ids)],
                ),
            )
            for n in range(number)
        ]

    def _commit(self, topic: str, partitions: int, at_ms: int) -> Row:
        return self._row(
            at_ms,
            OffsetCommit(
                group_id=GROUP_ID,
                correlation_id="c",
                reply_partition=0,
                api_version=7,
                generation_id=1,
                member_id=self.ids[0],
                topics=[CommittedTopic(topic, [CommittedPartition(p, 7) for p in range(partitions)])],
            ),
        )

    def commits(self) -> list[Row]:
        topics = len(self._topics)
        return [self._commit(self._topics[n % topics], 1, self.now_ms + n) for n in range(STEPS)]

    def commit_all(self, topic: int) -> None:
        """Commit 10 partitions of a topic."""
        timeline = self.timeline()
        timeline.apply(self._commit(f"topic-{topic:04}", 10, self.now_ms))
        assert timeline.group is not None
        self.state = encode(timeline.group)

    def rejoins(self) -> list[Row]:
        """The leader joins again, and then all others but one."""
        return [self._row(self.now_ms, self._join(member_id, "client")) for member_id in self.ids[:-1]]

    def newcomers(self) -> list[Row]:
        """Members without an id join while the group rebalances."""
        return [self._row(self.now_ms, self._join("", "client")) for _ in range(100)]

    def timeline(self) -> Timeline:
        return Timeline(GROUP_ID, decode(self.state), CONFIG, restore=lambda: decode(self.state))

    def per_row(self, rows: list[Row], rounds: int) -> float:
        """Apply the rows to a fresh group, all but the first measured."""
        first, *rest = rows

        def one_round() -> tuple[float, int]:
            timeline = self.timeline()
            timeline.apply(first)
            began_ns = time.process_time_ns()
            for row in rest:
                timeline.apply(row)
                timeline.take_effects()
            return time.process_time_ns() - began_ns, len(rest)

        return _median_us(one_round, rounds)

    def per_sync(self, rounds: int) -> float:
        """Members sync in the order in which they joined, the leader last."""
        rows = self._syncs()[:-1]

        def one_round() -> tuple[float, int]:
            timeline = Timeline(GROUP_ID, decode(self.completing), CONFIG, restore=lambda: None)
            began_ns = time.process_time_ns()
            for row in rows:
                timeline.apply(row)
                timeline.take_effects()
            return time.process_time_ns() - began_ns, len(rows)

        return _median_us(one_round, rounds)

    def per_decode(self, rounds: int) -> float:
        return _median_us(_repeat(lambda: decode(self.state)), rounds)

    def per_encode(self, rounds: int) -> float:
        group = decode(self.state)
        return _median_us(_repeat(lambda: encode(group)), rounds)

    def per_decode_and_encode(self, rounds: int) -> float:
        return _median_us(_repeat(lambda: encode(decode(self.state))), rounds)

    def per_call(self, rounds: int) -> float:
        """What a call of the operator does for one group that it touches."""
        row = self.heartbeats(1)[0]

        def call() -> bytes:
            timeline = self.timeline()
            timeline.apply(row)
            timeline.take_effects()
            timeline.fire_until(row.at_ms)
            timeline.take_effects()
            timeline.next_deadline_ms()
            assert timeline.group is not None
            return encode(timeline.group)

        return _median_us(_repeat(call), rounds)


def encode(group: AnyGroup) -> bytes:
    return codec.encode({GROUP_ID: group})[1]


def decode(state: bytes) -> AnyGroup:
    return codec.decode(GROUP_ID, codec.STATE_VERSION, state)[GROUP_ID]


def _repeat(operation: Callable[[], object], times: int = 300) -> Callable[[], tuple[float, int]]:
    def one_round() -> tuple[float, int]:
        began_ns = time.process_time_ns()
        for _ in range(times):
            operation()
        return time.process_time_ns() - began_ns, times

    return one_round


def _median_us(one_round: Callable[[], tuple[float, int]], rounds: int) -> float:
    """Return the median time of one operation. A round returns its ns and its number of operations."""
    return statistics.median(ns / number / 1_000 for ns, number in (one_round() for _ in range(rounds)))


if __name__ == "__main__":
    main()
