"""A group of the consumer protocol (KIP-848) through the gateway, its requests sent by hand: the topics of a
real broker, the coordinator's query, and what each member has after each heartbeat.
"""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.net.options import GatewayOptions
from kafka_why.contract.kafka.history import EntryType
from tests.e2e.gateway_clients import PARTITIONS
from tests.e2e.harness import history_of, wait_until
from tests.harness.transactions import Wire

pytestmark = pytest.mark.e2e

METADATA, LIST, HEARTBEAT, DESCRIBE = 3, 16, 68, 69
COORDINATOR_NOT_AVAILABLE = 15
REBALANCE_TIMEOUT_MS = 60_000


@dataclass
class Member:
    """A member that gives partitions up as soon as it is asked to."""

    wire: Wire
    group_id: str
    epoch: int = 0
    owned: dict[UUID, list[int]] = field(default_factory=dict)
    member_id: str = field(default_factory=lambda: str(uuid4()))
    subscription: dict[str, Any] = field(default_factory=dict)

    def join(self, **subscription: Any) -> None:
        self.subscription = {"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS, **subscription}
        self.beat(**self.subscription, topic_partitions=[])

    def beat(self, **fields: Any) -> None:
        """Send a heartbeat. A changed assignment is taken over, and acknowledged with the next one."""
        member = {"group_id": self.group_id, "member_id": self.member_id, "member_epoch": self.epoch}
        answer = self.wire.ask(HEARTBEAT, 1, **member, **fields)

        def is_answered() -> bool:
            """Where no answer came in time, the member sends everything again, as clients do."""
            nonlocal answer
            if answer.error_code == COORDINATOR_NOT_AVAILABLE:
                everything = {**self.subscription, "topic_partitions": self._owned()}
                answer = self.wire.ask(HEARTBEAT, 1, **member, **everything)
            return bool(answer.error_code != COORDINATOR_NOT_AVAILABLE)

        wait_until(is_answered, "an answer of the coordinator")
        assert (answer.error_code, answer.error_message) == (0, None)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {t.topic_id: sorted(t.partitions) for t in answer.assignment.topic_partitions}
            if self.epoch > 0:
                self.beat(topic_partitions=self._owned())

    def leave(self) -> None:
        self.epoch = -1
        self.beat()

    def _owned(self) -> list[dict[str, Any]]:
        return [{"topic_id": topic_id, "partitions": held} for topic_id, held in self.owned.items()]


def test_members_share_a_topic_by_name_and_by_pattern(
    wire: Wire, options: GatewayOptions, topic: str, group: str
) -> None:
    (found,) = wire.ask(METADATA, 12, topics=[{"name": topic, "topic_id": None}]).topics
    everything = {found.topic_id: list(range(PARTITIONS))}
    first, second = Member(wire, group), Member(wire, group)
    first.join(subscribed_topic_names=[topic])
    assert first.owned == everything
    second.join(subscribed_topic_regex=f"{topic[:-1]}.")

    def is_shared() -> bool:
        first.beat()
        second.beat()
        shares = [member.owned.get(found.topic_id, []) for member in (first, second)]
        held = sorted(chain(*shares))
        assert len(set(held)) == len(held), "a partition has two owners"
        return all(shares) and {found.topic_id: held} == everything

    wait_until(is_shared, "half of the topic for each member")

    (described,) = wire.ask(DESCRIBE, 1, group_ids=[group]).groups
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert described.group_epoch == described.assignment_epoch == first.epoch == second.epoch
    targets = {m.member_id: m.target_assignment.topic_partitions for m in described.members}
    shown = {member_id: [t.topic_name for t in target] for member_id, target in targets.items()}
    assert shown == {first.member_id: [topic], second.member_id: [topic]}
    listed = {g.group_id: (g.group_type, g.group_state) for g in wire.ask(LIST, 5).groups}
    assert listed[group] == ("consumer", "Stable")

    first.leave()

    def has_everything() -> bool:
        second.beat()
        return second.owned == everything

    wait_until(has_everything, "the whole topic for the second member")
    second.leave()
    history = history_of(options.client_config, options.layout, group)
    joined = [entry.member_id for entry in history if entry.type is EntryType.MEMBER_ADDED]
    assert joined == [first.member_id, second.member_id]
