"""The two most frequent requests to a consumer group whose members have their targets, each decided in one
pass: a heartbeat that reports no change, and a member's commit of one partition.

The outcome is that of the general step (rows HB16, HB26, TA1, RC0 and HB61; row OF7); tests compare both over
random logs. If another row may apply, a function here changes nothing and returns None.

A row, such as HB61, is a rule of docs/rules-consumer.md.
"""

from collections.abc import Mapping

from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, OffsetCommit
from kafka_why.contract.kafka.responses import ConsumerGroupHeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.kafka.commits import FIRST_VERSION_WITH_MEMBER_EPOCH, commit_one
from state.kafka.consumer.target import SETTINGS
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import Effects, Reply
from state.kafka.modern import is_blank
from state.kafka.protocol import Renewal


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeat,
    request_id: str,
    now_ms: int,
    config: CoordinatorConfig,
) -> Effects | None:
    """Renew the session of a member, or return None if the general step has to handle the heartbeat."""
    member = group.members.get(request.member_id)
    if (
        member is None
        or request.member_epoch != member.member_epoch
        or not _is_settled(group, member)
        or _reports_change(request, member)
        or not config.consumer_protocol
    ):
        return None
    settings = SETTINGS.in_force(group.configs, config)
    answer = ConsumerGroupHeartbeatResponse(
        group_id=request.group_id,
        correlation_id=request.correlation_id,
        request=request_id,
        error_code=ErrorCode.NONE,
        rule="HB61",
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    deadline_ms = now_ms + max(settings.session_timeout_ms, 0)
    effects = Effects(
        group,
        replies=[Reply(request.reply_partition, answer)],
        history=[],
        offsets=[],
        rules=["HB16", "HB26", "TA1", "RC0", "HB61"],
        earliest_armed_ms=deadline_ms,
    )
    group.clock_ms, member.session_deadline_ms = now_ms, deadline_ms
    member.client_id, member.client_host = request.client_id, request.client_host
    return effects


def commit(
    group: ConsumerGroup, request: OffsetCommit, request_id: str, now_ms: int, config: CoordinatorConfig
) -> Effects | None:
    """Store a member's offset, or return None if the general step has to handle the commit. This renews no
    session (row OF15).
    """
    member = group.members.get(request.member_id)
    if (
        member is None
        or group.quarantined is not None
        or request.generation_id != member.member_epoch
        or request.api_version < FIRST_VERSION_WITH_MEMBER_EPOCH
    ):
        return None
    return commit_one(group, request, request_id, now_ms, config, row="OF7")


RENEWALS: Mapping[type, Renewal] = {ConsumerGroupHeartbeat: heartbeat, OffsetCommit: commit}


def _is_settled(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return True if a heartbeat of the member that reports no change cannot change the group."""
    return (
        member.classic is None
        and member.is_reconciled_to(group.assignment_epoch)
        and group.assignment_epoch >= group.group_epoch
        and not group.metadata_stale
        and not member.subscribed_topic_regex
        and group.quarantined is None
    )


def _reports_change(request: ConsumerGroupHeartbeat, member: ConsumerMember) -> bool:
    """Return True if the request has a field that a member sends only if it has changed.

    `topic_partitions` has no effect on a member that has its target.
    """
    return (
        request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or request.rebalance_timeout_ms != -1
        or request.server_assignor is not None
        or request.rack_id is not None
        or request.topics is not None
        or request.regex is not None
        or bool(request.looked)  # the topics of a pattern that was checked
        # A blank instance id is refused (row HB7), also one that the member has from the classic protocol.
        or (
            request.instance_id is not None
            and (request.instance_id != member.instance_id or is_blank(request.instance_id))
        )
        or is_blank(request.member_id)
    )
