"""The processor time of the core in microseconds, without Spark and without decoding requests.

Each figure is the median of several rounds. The limits are for 2 cores of a quiet machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checkpoints import codec
from kafka_why.contract.codec import AnyRequest
from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    Heartbeat,
    JoinGroup,
    MemberAssignment,
    OffsetCommit,
    Protocol,
    SyncGroup,
)
from kafka_why.contract.protocols.subscriptions import Subscription, encode_subscription
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row, Timeline

GROUP_ID = "group"
CONFIG = CoordinatorConfig()
BEGIN_MS = 1_700_000_000_000
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
FORMED_AFTER_MS = 10_000  # longer than the initial rebalance delay, shorter than a session
ASSIGNMENT_BYTES = 100
MANY_TOPICS = 1_000

ROUNDS, QUICK_ROUNDS = 15, 3
STEPS, CALLS = 2_000, 300  # the number of requests, and of operator calls, in a round


@dataclass(frozen=True)
class CoreFigure:
    """The µs of one operation, and its limit in µs if it has one."""

    name: str
    us: float
    limit_us: float | None = None

    @property
    def is_within_limit(self) -> bool:
        return self.limit_us is None or self.us <= self.limit_us

    def text(self) -> str:
        verdict = "held" if self.is_within_limit else "NOT HELD"
        limit = "" if self.limit_us is None else f"{self.limit_us:8.0f}  {verdict}"
        return f"{self.name:62}{self.us:10.2f}{limit}"


def main() -> None:
    """Print the table. The exit code is 0 if every figure is within its limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.core", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take fewer rounds")
    rounds = QUICK_ROUNDS if parser.parse_args().quick else ROUNDS
    print(f"{'':62}{'µs':>10}{'limit':>8}")
    within_limits = []
    for figure in figures(rounds):
        print(figure.text(), flush=True)
        within_limits.append(figure.is_within_limit)
    sys.exit(0 if all(within_limits) else 1)


def figures(rounds: int) -> Iterator[CoreFigure]:
    """Yield every figure."""
    for size in (1, 100, 1_000):
        group = FormedGroup(size)
        yield CoreFigure(f"Heartbeat, {size:,} members", group.us_per_row(group.heartbeats(), rounds), 5)
    group = FormedGroup(1, topics=MANY_TOPICS)
    yield CoreFigure(f"Heartbeat, {MANY_TOPICS:,} topics", group.us_per_row(group.heartbeats(), rounds), 5)
    yield CoreFigure(f"OffsetCommit, {MANY_TOPICS:,} topics", group.us_per_row(group.commits(), rounds))
    for size in (10, 100, 1_000, 5_000):
        group = FormedGroup(size)
        yield CoreFigure(
            f"JoinGroup, {size:,} members join again", group.us_per_row(group.rejoins(), rounds), 20
        )
        newcomers = group.us_per_row(group.newcomers(), rounds)
        yield CoreFigure(f"JoinGroup, new members of a group of {size:,}", newcomers, 20)
        yield CoreFigure(f"SyncGroup, {size:,} members", group.us_per_sync(rounds))
        yield CoreFigure(f"a session of {size:,} that end at once", group.us_per_expiry(rounds))
    for size in (1, 3, 100):
        yield from _stored_figures(FormedGroup(size), f"{size} members", rounds)
    group = FormedGroup(100)
    for topic in range(100):
        group.commit_all(topic)
    yield from _stored_figures(group, "100 members with 1,000 offsets", rounds)


def _stored_figures(group: "FormedGroup", name: str, rounds: int) -> Iterator[CoreFigure]:
    """Yield the figures of a group that is stored between two calls of the operator."""
    state, decoded = group.state, decode(group.state)
    yield CoreFigure(f"decode, {name}", _us_per_call(lambda: decode(state), rounds))
    yield CoreFigure(f"encode, {name}", _us_per_call(lambda: encode(decoded), rounds))
    both_us = _us_per_call(lambda: encode(decode(state)), rounds)
    yield CoreFigure(f"decode and encode, {name}", both_us, 100 if name == "100 members" else None)
    yield CoreFigure(f"decode, one Heartbeat, encode, {name}", group.us_per_call(rounds))


class FormedGroup:
    """A Stable group of `members` members, formed by requests.

    `state` is the stored group, `completing` the stored group before the SyncGroups (CompletingRebalance).
    `ids` are the member ids in the order of joining; the first is the leader.
    """

    def __init__(self, members: int, topics: int = 2) -> None:
        self._topics = tuple(f"topic-{n:04}" for n in range(topics))
        metadata = encode_subscription(Subscription(self._topics), version=1)
        self._protocols = [Protocol("range", metadata), Protocol("cooperative-sticky", metadata)]
        self._offset = 0
        timeline = Timeline(GROUP_ID, None, CONFIG)
        for number in range(members):
            timeline.apply(self._row(BEGIN_MS, self._join("", f"client-{number}")))
        timeline.fire_until(BEGIN_MS + FORMED_AFTER_MS)
        group = timeline.group
        assert isinstance(group, ClassicGroup)
        self.now_ms = group.clock_ms
        self.ids = list(group.members)
        self.completing = encode(group)
        for sync in self.syncs():
            timeline.apply(sync)
        assert group.state is GroupState.STABLE
        assert len(group.members) == members
        self.state = encode(group)

    def _row(self, at_ms: int, request: AnyRequest) -> Row:
        self._offset += 1
        return Row(at_ms, f"requests-0-{self._offset}", request, 400)  # 400 bytes

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

    def syncs(self) -> list[Row]:
        """Return SyncGroups of all members, the leader's last."""
        assignments = [MemberAssignment(member_id, bytes(ASSIGNMENT_BYTES)) for member_id in self.ids]
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
                    assignments=assignments if member_id == self.ids[0] else [],
                ),
            )
            for member_id in [*self.ids[1:], self.ids[0]]
        ]

    def heartbeats(self, number: int = STEPS) -> list[Row]:
        """Return heartbeats of the members in turn, one each ms."""
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
        """Return commits of the leader: one partition each ms, of one topic after the other."""
        topics = len(self._topics)
        return [
            self._commit(self._topics[n % topics], partitions=1, at_ms=self.now_ms + n) for n in range(STEPS)
        ]

    def commit_all(self, topic: int) -> None:
        """Commit 10 partitions of a topic."""
        timeline = self.timeline()
        timeline.apply(self._commit(f"topic-{topic:04}", partitions=10, at_ms=self.now_ms))
        assert timeline.group is not None
        self.state = encode(timeline.group)

    def rejoins(self) -> list[Row]:
        """Return JoinGroups of the leader and of all others but the last."""
        return [self._row(self.now_ms, self._join(member_id, "client")) for member_id in self.ids[:-1]]

    def newcomers(self) -> list[Row]:
        """Return JoinGroups of members without an id."""
        return [self._row(self.now_ms, self._join("", "client")) for _ in range(100)]

    def timeline(self) -> Timeline:
        return Timeline(GROUP_ID, decode(self.state), CONFIG, restore=lambda: decode(self.state))

    def us_per_row(self, rows: list[Row], rounds: int) -> float:
        """Apply the rows to the group, and measure all except the first. A row is a request from the log."""
        return _median_us(lambda: _time_rows(self.timeline(), rows[:1], rows[1:]), rounds)

    def us_per_sync(self, rounds: int) -> float:
        """Measure the SyncGroups of all members but the leader, which wait for its assignment."""
        rows = self.syncs()[:-1]

        def one_round() -> tuple[int, int]:
            return _time_rows(Timeline(GROUP_ID, decode(self.completing), CONFIG), rows[:1], rows[1:])

        return _median_us(one_round, rounds)

    def us_per_expiry(self, rounds: int) -> float:
        """Measure the end of all sessions at the same time."""

        def one_round() -> tuple[int, int]:
            timeline = self.timeline()
            began_ns = time.process_time_ns()
            timeline.fire_until(self.now_ms + SESSION_TIMEOUT_MS)
            ns = time.process_time_ns() - began_ns
            assert isinstance(timeline.group, ClassicGroup)
            assert not timeline.group.members
            return ns, len(self.ids)

        return _median_us(one_round, rounds)

    def us_per_call(self, rounds: int) -> float:
        """Measure one call of Spark's operator for a stored group: decode, apply one heartbeat, encode."""
        (row,) = self.heartbeats(1)
        due_ms = self.timeline().next_deadline_ms()

        def call() -> bytes:
            timeline = Timeline(GROUP_ID, decode(self.state), CONFIG, restore=self.restore, due_ms=due_ms)
            timeline.apply(row)
            timeline.drain_effects()
            timeline.fire_until(row.at_ms)
            timeline.drain_effects()
            timeline.next_deadline_ms()
            assert timeline.group is not None
            return encode(timeline.group)

        return _us_per_call(call, rounds)

    def restore(self) -> AnyGroup:
        return decode(self.state)


def encode(group: AnyGroup) -> bytes:
    return codec.encode_group(group, None).group


def decode(state: bytes) -> AnyGroup:
    return codec.decode_group(GROUP_ID, codec.StoredGroup(codec.STATE_VERSION, None, state))


def _time_rows(timeline: Timeline, before: list[Row], rows: list[Row]) -> tuple[int, int]:
    """Apply the rows `before`, then `rows`. Return the ns and the number of `rows`."""
    for row in before:
        timeline.apply(row)
    began_ns = time.process_time_ns()
    for row in rows:
        timeline.apply(row)
        timeline.drain_effects()
    return time.process_time_ns() - began_ns, len(rows)


def _us_per_call(operation: Callable[[], object], rounds: int) -> float:
    def one_round() -> tuple[int, int]:
        began_ns = time.process_time_ns()
        for _ in range(CALLS):
            operation()
        return time.process_time_ns() - began_ns, CALLS

    return _median_us(one_round, rounds)


def _median_us(one_round: Callable[[], tuple[int, int]], rounds: int) -> float:
    """Return the median µs of one operation. `one_round` returns its ns and its number of operations."""
    return statistics.median(ns / number / 1_000 for ns, number in (one_round() for _ in range(rounds)))


if __name__ == "__main__":
    main()
