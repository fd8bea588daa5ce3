"""StreamsGroupHeartbeat: a member joins, keeps its session alive, moves to its target tasks, and leaves. Rows
KSH1 to KSH62.

Source: GroupCoordinatorService.streamsGroupHeartbeat, GroupMetadataManager.streamsGroupHeartbeat.
"""

from collections.abc import Iterator

from msgspec import UNSET

from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.snapshot import counted
from kafka_why.contract.kafka.streams_responses import (
    StatusCode,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import StepContext, restart_group
from state.kafka.modern import RequestRefused, heartbeat_handler, is_not, not_found, refusal
from state.kafka.streams.endpoints import endpoints_for, note_endpoint
from state.kafka.streams.members import admit, identify, leave, request_shutdown
from state.kafka.streams.reconciliation import reconcile
from state.kafka.streams.requests import check_request, owned_of
from state.kafka.streams.settings import (
    ACCEPTABLE_LAG,
    RACK_AWARE_TAGS,
    SETTINGS,
    TASK_OFFSET_INTERVAL,
    rack_aware_tags,
    value_of,
)
from state.kafka.streams.target import maybe_update_target
from state.kafka.streams.update import check_tasks, maybe_arm_initial_delay, plan_topology, update
from state.kafka.streams_group import StreamsGroup, StreamsGroupMember, task_ids
from state.kafka.streams_topics import TopologyProblem

_KIND = "streams group"
FIRST_VERSION_WITH_MISSING_TAGS = 1


# Requests of the streams protocol for a group id that has no streams group. Rows KSH18 to KSH22, KSH36, KSD1.
#
# Source: GroupMetadataManager.getOrCreateStreamsGroup, getStreamsGroupOrThrow.


def get_or_create_group(context: StepContext, request: StreamsGroupHeartbeat) -> None:
    """Make sure that there is a streams group: for a request that joins, create it or convert the Empty
    classic group to one. Raise RequestRefused if there is none and the request does not join, or if the group
    cannot be converted.
    """
    if context.has_group and isinstance(context.group, StreamsGroup):
        context.rule("KSH19")
        return
    error, epoch = ErrorCode.GROUP_ID_NOT_FOUND, request.member_epoch
    if not context.has_group:
        row = context.rule("KSH36" if epoch < 0 else "KSH18")
        if epoch != 0:
            raise RequestRefused(row, error, f"Group {context.group_id} does not exist.")
        context.save()
        context.create_group(StreamsGroup, row, "first StreamsGroupHeartbeat for this group id")
        return
    is_classic = isinstance(context.group, ClassicGroup)
    is_free = is_classic and context.group.is_empty
    row = context.rule("KSH36" if epoch < 0 else "KSH20" if is_free else "KSH21" if is_classic else "KSH22")
    if epoch != 0 or not is_free:
        raise RequestRefused(row, error, is_not(context.group_id, _KIND))
    context.save()
    reason = "the Empty classic group becomes a streams group; its offsets stay"
    restart_group(context, row, StreamsGroup, reason)


describe_no_group = not_found("KSD1", _KIND, StreamsGroupDescribeResponse)
refusal_of_heartbeat = refusal("KSH22", _KIND, check_request)
refusal_of_describe = refusal("KSD1", _KIND)


def _handle_heartbeat(context: StepContext, request: StreamsGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle the heartbeat of a member or of a sender that joins, in Kafka's order of steps. Raise
    RequestRefused, before anything is changed, if it may not continue.
    """
    group, owned = context.group_of(StreamsGroup), owned_of(request)
    sender = identify(context, group, request, owned)
    plan = plan_topology(context, group, request)
    check_tasks(context, request, plan, owned)
    was_empty = group.is_empty
    member = admit(context, group, request, sender)
    assigned_before, endpoint_before = member.assigned, member.user_endpoint
    update(context, group, member, request, sender, plan)
    if was_empty:
        maybe_arm_initial_delay(context, group)
    delayed = maybe_update_target(context, group)
    reconcile(context, group, member, owned)
    has_changed = member.assigned != assigned_before
    note_endpoint(
        context, group, member, has_changed=has_changed, is_other=member.user_endpoint != endpoint_before
    )
    context.rule("KSH56")
    member.session_deadline_ms = context.deadline(SETTINGS.of(context).session_timeout_ms)
    if request.shutdown_application:
        request_shutdown(context, group, member)
    _answer(
        context,
        group,
        member,
        request,
        reply_to,
        delayed,
        has_tasks=_has_tasks(context, request, has_changed),
    )


heartbeat = heartbeat_handler(check_request, get_or_create_group, leave, _handle_heartbeat)


def _has_tasks(context: StepContext, request: StreamsGroupHeartbeat, has_changed: bool) -> bool:
    """Row KSH62: return True if the answer has the member's tasks."""
    context.rule("KSH62")
    return request.member_epoch == 0 or has_changed


def _answer(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    reply_to: ReplyTo,
    delayed: str,
    *,
    has_tasks: bool,
) -> None:
    configs, config, tasks = group.configs, context.config, member.assigned
    endpoint_epoch, endpoints = endpoints_for(context, group, member, request)
    problem = group.configured if isinstance(group.configured, TopologyProblem) else None
    create = problem.create if problem is not None else []
    if create:
        context.rule("KSQ10")
    context.reply(
        reply_to,
        StreamsGroupHeartbeatResponse,
        context.rule("KSH58"),
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=SETTINGS.of(context).heartbeat_interval_ms,
        acceptable_recovery_lag=value_of(ACCEPTABLE_LAG, configs, config),
        task_offset_interval_ms=value_of(TASK_OFFSET_INTERVAL, configs, config),
        status=list(_statuses(context, group, member, request, delayed, problem)),
        active_tasks=task_ids(tasks.active) if has_tasks else None,
        standby_tasks=task_ids(tasks.standby) if has_tasks else None,
        warmup_tasks=task_ids(tasks.warm_up) if has_tasks else None,
        endpoint_information_epoch=endpoint_epoch,
        partitions_by_user_endpoint=endpoints,
        create_topics=create or UNSET,
        needs_topics=sorted(group.required) if problem is not None else UNSET,
    )


def _statuses(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    delayed: str,
    problem: TopologyProblem | None,
) -> Iterator[StreamsStatus]:
    """Yield the conditions in the member's answer, in Kafka's order."""
    assert group.topology is not None
    known, own = group.topology.epoch, member.topology_epoch
    if own < known:
        context.rule("KSH46")
        detail = f"The member's topology epoch {own} is behind the group's topology epoch {known}."
        yield StreamsStatus(StatusCode.STALE_TOPOLOGY, detail)
    if delayed:
        yield StreamsStatus(StatusCode.ASSIGNMENT_DELAYED, delayed)
    if problem is not None:
        context.rule("KSH59")
        yield StreamsStatus(problem.status, problem.detail)
    if group.shutdown_requested_by:
        context.rule("KSH60")
        detail = f"Member {group.shutdown_requested_by} asked to shut the application down."
        yield StreamsStatus(StatusCode.SHUTDOWN_APPLICATION, detail)
    tags = rack_aware_tags(group.configs, context.config)
    missing = [tag for tag in tags.split(",") if tag and tag not in member.client_tags]
    if missing and request.api_version >= FIRST_VERSION_WITH_MISSING_TAGS:
        context.rule("KSH61")
        number = counted(len(missing), "client tag")
        detail = f"The member lacks {number} of {RACK_AWARE_TAGS}: {', '.join(missing)}."
        yield StreamsStatus(StatusCode.MISSING_CLIENT_TAGS, detail)
