"""`group-coordinator` with another step function: `python -m tests.campaigns.planted STEP run ...`.

Campaigns run the coordinator with the step `steady`: that of the core, except that a record can kill its
worker. The step `buggy` has planted bugs, one of each kind that the judge must find. Python workers import
this module.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from uuid import UUID
from zlib import crc32

from msgspec.structs import asdict, replace

from cli import main
from kafka_why.contract.codec import AnyRequest
from kafka_why.contract.kafka.requests import (
    ConsumerGroupHeartbeat,
    Heartbeat,
    OffsetCommit,
    SyncGroup,
    TransactionMarker,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    SyncGroupResponse,
    TxnOffsetCommitResponse,
)
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import Effects, KafkaGroup
from state.protocol import Received
from state.timeline import StepFunction
from streaming.query.operator import Operator
from streaming.service import coordinator

Apply = Callable[[], Effects]

HEARTBEATS = (Heartbeat, ConsumerGroupHeartbeat)
KILLER = "killer"
"""The client id of a request that ends the Python worker which handles it."""


def steady(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Apply the core's step. A request of the client `KILLER` kills the worker, as faulty C code would."""
    request = getattr(event, "request", None)
    if request is not None and getattr(request, "client_id", "") == KILLER:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(group, group_id, event, now_ms, config)


def buggy(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Return the core's step with one of BUGS, chosen by the group's number. Some groups have no bug."""
    bug = bug_of(group_id)
    if bug is None or not isinstance(event, Received) or not isinstance(group, KafkaGroup | None):
        return step(group, group_id, event, now_ms, config)

    def apply() -> Effects:
        effects = step(group, group_id, event, now_ms, config)
        assert isinstance(effects, Effects)
        return effects

    return BUGS[bug](event, group, apply)


def bug_of(group_id: str) -> str | None:
    """Return the bug of a group, None if it has none."""
    number = group_id.rsplit("-", 1)[-1]
    has_bugs = number.isdigit() and group_id.startswith(("classic", "consumer"))
    index = int(number) % (len(BUGS) + 1) if has_bugs else 0
    return None if index == 0 else [*BUGS][index - 1]


def is_unlucky(event: Received[AnyRequest]) -> bool:
    """Return True for one in four requests, so that every group of a sample has some of them."""
    return crc32(event.request_id.encode()) % 4 == 0


def answer_dropped(event: Received[AnyRequest], group: KafkaGroup | None, apply: Apply) -> Effects:
    effects = apply()
    if isinstance(event.request, HEARTBEATS) and is_unlucky(event):
        return replace(effects, replies=[])
    return effects


def answered_twice(event: Received[AnyRequest], group: KafkaGroup | None, apply: Apply) -> Effects:
    """Answer each heartbeat twice, the second time differently."""
    effects = apply()
    if isinstance(event.request, HEARTBEATS):
        (reply,) = effects.replies
        other = replace(reply, response=replace(reply.response, error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        return replace(effects, replies=[reply, other])
    return effects


def heartbeats_ignored(event: Received[AnyRequest], group: KafkaGroup | None, apply: Apply) -> Effects:
    """Answer heartbeats and commits without extending the session."""
    member_id = getattr(event.request, "member_id", "")
    before_ms = _deadline_ms(group, member_id)
    effects = apply()
    if before_ms is None or not isinstance(event.request, (*HEARTBEATS, OffsetCommit)):
        return effects
    if isinstance(effects.group, ClassicGroup):
        effects.group.members[member_id].heartbeat_deadline_ms = before_ms
    elif isinstance(effects.group, ConsumerGroup) and member_id in effects.group.members:
        effects.group.members[member_id].session_deadline_ms = before_ms
    return effects


def _deadline_ms(group: KafkaGroup | None, member_id: str) -> int | None:
    """Return the end of a member's session, or None if it has none."""
    if isinstance(group, ClassicGroup) and member_id in group.members:
        return group.members[member_id].heartbeat_deadline_ms
    if isinstance(group, ConsumerGroup) and member_id in group.members:
        return group.members[member_id].session_deadline_ms
    return None


def offset_rolled_back(event: Received[AnyRequest], group: KafkaGroup | None, apply: Apply) -> Effects:
    """Acknowledge commits, but keep the first offset."""
    before = {} if group is None else {topic: dict(offsets) for topic, offsets in group.offsets.items()}
    effects = apply()
    if isinstance(event.request, OffsetCommit) and before and isinstance(effects.group, KafkaGroup):
        effects.group.offsets.clear()
        effects.group.offsets.update(before)
        return replace(effects, offsets=[])
    return effects


def two_owners(event: Received[AnyRequest], group: KafkaGroup | None, apply: Apply) -> Effects:
    """Assign the first member's partitions to all members, or in a consumer group everyone's partitions."""
    effects = apply()
    if isinstance(effects.group, ConsumerGroup) and effects.group.members:
        return _assign_all_to_all(effects, effects.group)
    if not isinstance(event.request, SyncGroup) or not isinstance(effects.group, ClassicGroup):
        return effects
    if not effects.group.members:
        return effects
    first = effects.group.members[min(effects.group.members)].assignment
    replies = [
        replace(reply, response=replace(reply.response, assignment=first))
        if isinstance(reply.response, SyncGroupResponse) and reply.response.error_code is ErrorCode.NONE
        else reply
        for reply in effects.replies
    ]
    return replace(effects, replies=replies)


def _assign_all_to_all(effects: Effects, group: ConsumerGroup) -> Effects:
    """Replace each assignment by the partitions of all members."""
    have: dict[bytes, set[int]] = {}
    for member in group.members.values():
        for topic_id, numbers in member.assigned.items():
            have.setdefault(topic_id, set()).update(numbers)
    given = [AssignedTopicPartitions(UUID(bytes=one), sorted(numbers)) for one, numbers in have.items()]
    replies = [
        replace(reply, response=replace(reply.response, assignment=given))
        if isinstance(reply.response, ConsumerGroupHeartbeatResponse) and reply.response.assignment
        else reply
        for reply in effects.replies
    ]
    return replace(effects, replies=replies)


BUGS: dict[str, Callable[[Received[AnyRequest], KafkaGroup | None, Apply], Effects]] = {
    "lost": answer_dropped,
    "answered differently": answered_twice,
    "wrongly expired": heartbeats_ignored,
    "offsets wrong": offset_rolled_back,
    "two owners": two_owners,
}
"""The bugs, by the violation that the judge of the fault campaign has to find."""


def eager(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Return the core's step with a bug: an offset in a transaction is committed at once, so that the
    transaction's marker finds nothing pending.
    """
    if not isinstance(event, Received) or not isinstance(event.request, TxnOffsetCommit):
        return steady(group, group_id, event, now_ms, config)
    fields = {name: value for name, value in asdict(event.request).items() if name in _OF_COMMITS}
    effects = steady(group, group_id, replace(event, request=OffsetCommit(**fields)), now_ms, config)
    assert isinstance(effects, Effects)
    replies = [
        replace(reply, response=TxnOffsetCommitResponse(**asdict(reply.response)))
        for reply in effects.replies
    ]
    return replace(effects, replies=replies)


def trusting(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Return the core's step with a bug: every transaction counts as committed when it ends."""
    if isinstance(event, Received) and isinstance(event.request, TransactionMarker):
        event = replace(event, request=replace(event.request, committed=True))
    return steady(group, group_id, event, now_ms, config)


_OF_COMMITS = OffsetCommit.__struct_fields__
STEPS: dict[str, StepFunction] = {"steady": steady, "buggy": buggy, "eager": eager, "trusting": trusting}
FOLLOWER = "transactions-follower"


class ThreadKilled(BaseException):
    """The exception that ends a thread from outside."""


def kill_follower(*_: object) -> None:
    """End the thread that reads the markers, as an unexpected error would."""
    for thread in threading.enumerate():
        if thread.name == FOLLOWER:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(ThreadKilled)
            )


def run(arguments: list[str]) -> None:
    """Run `group-coordinator` with a step. The arguments are the step's name and those of the command."""
    name, *rest = arguments
    # By its import path, because Python workers cannot import __main__.
    from tests.campaigns import planted

    signal.signal(signal.SIGUSR1, kill_follower)
    setattr(coordinator, "Operator", partial(Operator, step=planted.STEPS[name]))  # noqa: B010 - not exported
    main(rest)


if __name__ == "__main__":
    run(sys.argv[1:])
