"""Partition counts in JoinGroups for an assignment by the coordinator, and their bound."""

from dataclasses import replace
from itertools import count

from kafka_why.contract.kafka.requests import JoinGroup, Protocol
from kafka_why.contract.kafka.responses import JoinGroupResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import Subscription, decode_assignment, encode_subscription
from kafka_why.numbers import INT32_MAX
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.context import Effects
from state.kafka.protocols import protocol_of, step
from state.protocol import Received

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0, group_max_partitions=10)
NAME = "coordinator:sticky"
OFFSETS = count()


def join(topic: str = "t", partitions: int | None = None, **fields: object) -> JoinGroup:
    given: dict[str, object] = {
        "group_id": "g",
        "correlation_id": "c",
        "reply_partition": 0,
        "api_version": 3,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [Protocol(NAME, encode_subscription(Subscription((topic,))))],
        "partitions_per_topic": {} if partitions is None else {topic: partitions},
    }
    return JoinGroup(**given | fields)  # type: ignore[arg-type]


def send(
    group: ClassicGroup | None, request: JoinGroup, config: CoordinatorConfig = CONFIG
) -> tuple[Effects, ClassicGroup]:
    effects = step(group, "g", Received(f"requests-0-{next(OFFSETS)}", request), 0, config)
    assert isinstance(effects.group, ClassicGroup)
    return effects, effects.group


def error_of(effects: Effects) -> ErrorCode:
    return effects.replies[-1].response.error_code


def test_subscription_to_known_topics_counts_towards_the_group_limit() -> None:
    _, group = send(None, join("t", 6, partitions_per_topic={"t": 6}))
    group.partitions_per_topic = {"u": 10}  # of the last generation
    effects, group = send(group, join("u"))
    assert error_of(effects) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_counts_of_unsubscribed_topics_are_dropped() -> None:
    _, group = send(None, join("t", 6))
    (member,) = group.members
    for n in range(100):
        effects, group = send(group, join("t", member_id=member, partitions_per_topic={f"x{n}": 9, "t": 6}))
        assert effects.replies == []
    assert sum(group.reported_partition_counts.values()) <= CONFIG.group_max_partitions


def test_counts_over_a_newer_limit_are_ignored_and_reported() -> None:
    """A state from before counts were bounded may hold any count. Nothing is computed from it."""
    large = replace(CONFIG, group_max_partitions=INT32_MAX)
    subscription = encode_subscription(Subscription(("t", "u")))
    request = join(
        protocols=[Protocol(NAME, subscription)], partitions_per_topic={"t": INT32_MAX - 3, "u": 3}
    )
    _, group = send(None, request, large)
    (due,) = protocol_of(group).due_deadlines(group, 0, CONFIG)
    effects = step(group, "g", due, 0, CONFIG)
    assert isinstance(effects.replies[0].response, JoinGroupResponse)
    assert effects.history[-1].reason.endswith("group.max.partitions (10) leaves out t")
    assert isinstance(effects.group, ClassicGroup)
    member: ClassicGroupMember = next(iter(effects.group.members.values()))
    assert [tuple(p) for p in decode_assignment(member.assignment).partitions] == [
        ("u", 0),
        ("u", 1),
        ("u", 2),
    ]
