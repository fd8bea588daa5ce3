"""Groups with members that a test makes: it knows their ids and what they are given."""

import time
from collections.abc import Sequence
from concurrent.futures import Future

from assignors.kafka.api import Assignment, Subscription, TopicPartition
from assignors.kafka.consumer_protocol import encode_assignment, encode_subscription
from clients.coordinator_client import CoordinatorClient
from clients.pending import AnyRequest, FutureRequest, R, resolve_futures
from state.errors import ErrorCode
from state.kafka.requests import JoinGroup, MemberAssignment, Protocol

ANSWER_TIMEOUT_MS = 120_000
SESSION_TIMEOUT_MS = 1_800_000
JOIN_VERSION = 3  # the last that lets a new member in without asking for its id again


def form(
    client: CoordinatorClient,
    group_id: str,
    assignments: Sequence[Sequence[TopicPartition]],
    *instance_ids: str | None,
) -> list[str]:
    """Bring a group to Stable with as many members as assignments; their ids, in order.

    The JoinGroups are one pack, so that no pause between them ends the initial delay.
    """
    joins = [
        _join(client, group_id, assigned, instance_id)
        for assigned, instance_id in zip(assignments, _padded(instance_ids, len(assignments)), strict=True)
    ]
    answers = _answers_together(client, joins)
    assert {(answer.error_code, answer.generation_id) for answer in answers} == {(ErrorCode.NONE, 1)}
    given = [
        MemberAssignment(answer.member_id, encode_assignment(Assignment(tuple(assigned))))
        for answer, assigned in zip(answers, assignments, strict=True)
    ]
    syncs = [
        client.sync(
            group_id,
            generation_id=1,
            member_id=answer.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given if answer.member_id == answer.leader else (),
        )
        for answer in answers
    ]
    assert all(sync.result().error_code is ErrorCode.NONE for sync in syncs)
    return [answer.member_id for answer in answers]


def _padded(instance_ids: Sequence[str | None], count: int) -> list[str | None]:
    return [*instance_ids, *[None] * (count - len(instance_ids))]


def _join(
    client: CoordinatorClient, group_id: str, assigned: Sequence[TopicPartition], instance_id: str | None
) -> JoinGroup:
    topics = tuple(dict.fromkeys(partition.topic for partition in assigned))
    return JoinGroup(
        **client.header(group_id, JOIN_VERSION),
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=SESSION_TIMEOUT_MS,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[Protocol("range", encode_subscription(Subscription(topics)))],
    )


def _answers_together(client: CoordinatorClient, requests: Sequence[AnyRequest[R]]) -> list[R]:
    """Send requests of one group at the same moment, so they are one pack, and wait for their answers."""
    asked = [
        FutureRequest(request, time.monotonic(), ANSWER_TIMEOUT_MS, resolve_futures, future=Future())
        for request in requests
    ]
    client.send_all(asked)
    return [request.future.result() for request in asked]
