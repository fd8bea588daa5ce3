"""The history of a large group whose clients are restarted one after the other, computed by the core."""

from collections.abc import Sequence
from typing import Any

from bench.core import CONFIG
from kafka_why.contract.codec import AnyRequest
from kafka_why.contract.kafka.history import GroupState, HistoryEntry
from kafka_why.contract.kafka.requests import (
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    Protocol,
    SyncGroup,
)
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    Claim,
    MemberSubscription,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_sticky_user_data,
    encode_subscription,
)
from kafka_why.sticky.api import Assignor
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.timeline import Row, Timeline

GROUP_ID = "group"
TOPICS = 10
TIMEOUT_MS = 1_800_000
"""Session and rebalance timeout: the longest that is allowed, because nobody sends heartbeats."""
INITIAL_DELAY_MS = 10_000
REJOIN_MS = 3_000
"""The time from the start of a rebalance until the members join again, one each millisecond."""


class RestartedGroup:
    """A classic group with an eager assignor. `history` has its entries so far.

    Each restart of a client is two rebalances: a member leaves, and its client joins as another member.
    """

    def __init__(self, assignor: Assignor, members: int, partitions: int, begin_ms: int) -> None:
        self.history: list[HistoryEntry] = []
        self._now_ms = begin_ms
        self._assignor = assignor
        self._topics = {f"topic-{n:02}": partitions // TOPICS for n in range(TOPICS)}
        self._held: dict[str, tuple[TopicPartition, ...]] = {}
        self._timeline = Timeline(GROUP_ID, None, CONFIG)
        self._requests = 0
        for number in range(members):
            self._join("", f"worker-{number:03}")
        self._now_ms += INITIAL_DELAY_MS
        self._timeline.fire_until(self._now_ms)
        self._sync()

    @property
    def group(self) -> ClassicGroup:
        """The group now."""
        group = self._timeline.group
        assert isinstance(group, ClassicGroup)
        return group

    def restart(self, pause_ms: int) -> None:
        """Let the first member leave, and its client join `pause_ms` later. Takes twice `pause_ms`."""
        return_ms = self._now_ms + pause_ms
        client_id = self.leave()
        self._now_ms = return_ms
        self._join("", client_id)
        self._join_again()
        self._now_ms = return_ms + pause_ms

    def leave(self) -> str:
        """Let the first member leave, and the others join again. Return its client id."""
        leaver = self._members[0]
        self._apply(LeaveGroup(**self._common_fields(4), members=[LeavingMember(leaver.member_id)]))
        self._join_again()
        return leaver.client_id

    def wait_until(self, at_ms: int) -> None:
        """Let time pass until `at_ms`."""
        self._now_ms = max(self._now_ms, at_ms)

    @property
    def _members(self) -> Sequence[ClassicGroupMember]:
        return list(self.group.members.values())

    def _join_again(self) -> None:
        self._now_ms += REJOIN_MS
        for member in self._members:
            has_joined = member.parked_join is not None
            if not has_joined:
                self._join(member.member_id, member.client_id)
        self._sync()

    def _join(self, member_id: str, client_id: str) -> None:
        metadata = encode_subscription(Subscription(tuple(self._topics)), version=1)
        self._apply(
            JoinGroup(
                **self._common_fields(3),
                client_id=client_id,
                client_host="/10.0.0.1",
                session_timeout_ms=TIMEOUT_MS,
                rebalance_timeout_ms=TIMEOUT_MS,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[Protocol(self._assignor.name, metadata)],
            )
        )
        self._now_ms += 1

    def _sync(self) -> None:
        """Let all members sync, the leader last."""
        group = self.group
        assert group.state is GroupState.COMPLETING_REBALANCE
        for member in sorted(self._members, key=lambda member: member.member_id == group.leader_id):
            is_leader = member.member_id == group.leader_id
            self._apply(
                SyncGroup(
                    **self._common_fields(3),
                    generation_id=group.generation,
                    member_id=member.member_id,
                    assignments=self._assign() if is_leader else [],
                )
            )
        assert self.group.state is GroupState.STABLE

    def _assign(self) -> list[MemberAssignment]:
        topics = tuple(self._topics)
        subscriptions = {}
        for member in self._members:
            claim = Claim(self._held.get(member.member_id, ()), self.group.generation - 1)
            subscription = Subscription(topics, encode_sticky_user_data(claim))
            subscriptions[member.member_id] = MemberSubscription(subscription)
        assigned = self._assignor.assign(self._topics, subscriptions)
        self._held = {member_id: tuple(partitions) for member_id, partitions in assigned.items()}
        return [
            MemberAssignment(member_id, encode_assignment(Assignment(partitions), version=1))
            for member_id, partitions in self._held.items()
        ]

    def _common_fields(self, api_version: int) -> dict[str, Any]:
        common = {"group_id": GROUP_ID, "correlation_id": "c", "reply_partition": 0}
        return common | {"api_version": api_version}

    def _apply(self, request: AnyRequest) -> None:
        self._timeline.apply(Row(self._now_ms, f"requests-0-{self._requests}", request, 400))
        self._requests += 1
        for effects in self._timeline.drain_effects():
            self.history += (event for event in effects.history if isinstance(event, HistoryEntry))
