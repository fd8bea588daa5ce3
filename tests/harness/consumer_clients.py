"""Clients of consumer groups, which behave as Kafka's consumer, and the cluster whose topics they read.

A client revokes partitions before it acknowledges, and joins anew after an error that fences it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from msgspec import UNSET

from kafka_why.contract.kafka.history import LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH
from kafka_why.contract.kafka.requests import (
    AnyRequest,
    ConsumerGroupHeartbeat,
    RegexResolution,
    TopicIdPartitions,
)
from kafka_why.contract.kafka.responses import AnyResponse, ConsumerGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.messages import ErrorCode
from records.topic_patterns import digest
from tests.harness.common import Common

TOPICS = ("foo", "bar", "foobar", "baz")
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
FENCED = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)

Partition = tuple[bytes, int]


class Cluster:
    """The topics of the brokers. Metadata may be one change behind, as in a gateway's cache."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._ids = 0
        self._rests = False
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
        """Stop changing topics, and let all gateways have the current metadata."""
        self._before, self._rests = self.now, True

    def images(self, names: Iterable[str]) -> TopicImages | None:
        """Return a gateway's metadata of the topics, or None if it cannot reach the brokers."""
        luck = 1.0 if self._rests else self._random.random()
        cached = self._before if luck < 0.2 else self.now
        return None if luck < 0.1 else {name: cached.get(name) for name in names}

    def resolve(self, pattern: str, at_ms: int, may: str | None = None) -> RegexResolution:
        """Resolve a pattern as a gateway does, to the topics that also match `may`, if it is given."""
        matches = {name: image for name, image in sorted(self.now.items()) if re.fullmatch(pattern, name)}
        if may is None:
            return RegexResolution(matches, at_ms)
        allowed = {name: image for name, image in matches.items() if re.fullmatch(may, name)}
        return RegexResolution(allowed, at_ms, seen=digest(matches))

    def _create(self, name: str) -> None:
        self._ids += 1
        self.now[name] = TopicImage(UUID(int=self._ids), self._random.randint(1, 6))


@dataclass
class Consumer:
    """A client, and what it knows of its group from its answers.

    `assigned` is the last assignment in an answer. `uses` are the partitions that it reads: the assigned
    ones, and those to revoke until it acknowledges.
    """

    number: int
    group_id: str
    instance_id: str | None
    api_version: int
    assignor: str | None
    names: tuple[str, ...]
    pattern: str
    is_slow: bool = False  # revokes nothing in time
    may: str | None = None  # the topics that it may DESCRIBE, None if its gateway does not check
    look: str | None = None  # the pattern that its gateway was asked to look at
    starts: int = 0
    member_id: str = ""
    epoch: int = 0
    is_running: bool = False
    is_full: bool = True
    uses: set[Partition] = field(default_factory=set)
    assigned: set[Partition] = field(default_factory=set)

    def start(self) -> None:
        """Start a new process. Version 0 gets its member id from the answer, version 1 makes its own."""
        self.starts += 1
        self.member_id = "" if self.api_version == 0 else f"client-{self.number}-{self.starts}"
        self.is_running = True
        self.forget()

    def forget(self) -> None:
        """Forget the membership except for the id."""
        self.epoch, self.is_full, self.look = 0, True, None
        self.uses, self.assigned = set(), set()

    def stop(self) -> None:
        self.is_running = False
        self.forget()

    def lose_answer(self) -> None:
        """Lose an answer, so that the next request is a full one."""
        self.is_full = True

    def request(self, cluster: Cluster, at_ms: int, *, in_time: bool) -> AnyRequest:
        """Return the next heartbeat. With `in_time` a pending revocation is completed and acknowledged."""
        acknowledges = in_time and self.uses != self.assigned
        if acknowledges:
            self.uses = set(self.assigned)
        is_full = self.is_full or self.epoch == 0
        names, pattern = list(self.names), self.pattern if self.api_version else ""
        look, self.look = self.look, None
        return ConsumerGroupHeartbeat(
            **common_of(self),
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=30_000 if is_full else -1,
            subscribed_topic_names=names if is_full else None,
            subscribed_topic_regex=pattern if is_full and self.api_version else None,
            server_assignor=self.assignor if is_full else None,
            topic_partitions=partitions_of(self.uses) if is_full or acknowledges else None,
            topics=cluster.images(names) if is_full else None,
            regex=cluster.resolve(pattern, at_ms, self.may) if is_full and pattern else None,
            checks_topics=UNSET if self.may is None else True,
            looked={look: cluster.resolve(look, at_ms, self.may)} if look and not is_full else UNSET,
        )

    def leave(self, *, for_a_while: bool) -> AnyRequest | None:
        """Stop, and return the request to leave, or None if none is needed. The answer is not awaited."""
        keeps_membership = self.instance_id is not None and for_a_while
        request = ConsumerGroupHeartbeat(
            **common_of(self),
            member_id=self.member_id,
            member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH if keeps_membership else LEAVE_GROUP_MEMBER_EPOCH,
            instance_id=self.instance_id,
        )
        is_member = self.is_running and self.member_id != ""
        self.stop()
        return request if is_member else None

    def handle_answer(self, response: AnyResponse, cluster: Cluster) -> None:
        """Handle an answer as Kafka's consumer does."""
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        if response.error_code in FENCED:
            return self.forget()
        if response.error_code is not ErrorCode.NONE:
            return self.stop()  # such an error is fatal
        assert response.member_id is not None
        self.member_id, self.epoch, self.is_full = response.member_id, response.member_epoch, False
        self.look = response.look or None
        if response.assignment is not None:
            self.assigned = {(t.topic_id.bytes, n) for t in response.assignment for n in t.partitions}
            self.uses |= self.assigned
        return None


def partitions_of(partitions: Iterable[Partition]) -> list[TopicIdPartitions]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(number)
    return [TopicIdPartitions(UUID(bytes=topic_id), numbers) for topic_id, numbers in by_topic.items()]


def common_of(client: Any) -> Common:
    """Return the fields of every request of a client."""
    return {
        "group_id": client.group_id,
        "correlation_id": str(client.number),
        "reply_partition": 0,
        "api_version": client.api_version,
        "client_id": f"client-{client.number}",
    }
