"""StreamsGroupHeartbeat: a member joins, keeps its session alive, moves to its target tasks, and leaves. Rows
KSH1 to KSH62.

Source: GroupCoordinatorService.streamsGroupHeartbeat, GroupMetadataManager.streamsGroupHeartbeat.

A row, such as KSH18, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from collections.abc import Iterator

from msgspec import UNSET

from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.snapshot import counted
from kafka_why.contract.kafka.streams_responses import (
    StatusCode,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
)
from state.kafka.context import StepContext
from state.kafka.modern import CreationRows, ensure_group, heartbeat_handler
from state.kafka.streams.endpoints import endpoints_for, update_endpoint_epoch
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

KIND = "streams group"
_CREATION_ROWS = CreationRows("KSH18", empty_classic="KSH20", classic="KSH21", other="KSH22", leaves="KSH36")
FIRST_VERSION_WITH_MISSING_TAGS = 1


# Requests of the streams protocol for a group id that has no streams group. Rows KSH18 to KSH22, KSH36, KSD1.
#
# Source: GroupMetadataManager.getOrCreateStreamsGroup, getStreamsGroupOrThrow.


def get_or_create_group(context: StepContext, request: StreamsGroupHeartbeat) -> None:
    """If there is no streams group and the request joins, create one or convert an Empty classic group.

    Raise RequestRefused if there is none and the request does not join, or if the group cannot be converted.
    """
    if ensure_group(context, request, StreamsGroup, KIND, _CREATION_ROWS):
        context.cite("KSH19")


def _handle_heartbeat(context: StepContext, request: StreamsGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle the heartbeat of a member or of a sender that joins, in Kafka's order of steps. Raise
    RequestRefused, before anything is changed, if the sender may not stay or join.
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
    delay_detail = maybe_update_target(context, group)
    reconcile(context, group, member, owned)
    tasks_changed = member.assigned != assigned_before
    update_endpoint_epoch(
        context,
        group,
        member,
        tasks_changed=tasks_changed,
        endpoint_changed=member.user_endpoint != endpoint_before,
    )
    context.cite("KSH56")
    SETTINGS.arm_session(context, member)
    if request.shutdown_application:
        request_shutdown(context, group, member)
    _answer(
        context,
        group,
        member,
        request,
        reply_to,
        delay_detail,
        includes_tasks=_includes_tasks(context, request, tasks_changed),
    )


heartbeat = heartbeat_handler(check_request, get_or_create_group, leave, _handle_heartbeat)


def _includes_tasks(context: StepContext, request: StreamsGroupHeartbeat, tasks_changed: bool) -> bool:
    """Row KSH62: return True if the answer includes the member's tasks."""
    context.cite("KSH62")
    return request.member_epoch == 0 or tasks_changed


def _answer(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    reply_to: ReplyTo,
    delay_detail: str,
    *,
    includes_tasks: bool,
) -> None:
    """Row KSH58: answer the member with its epoch, its tasks, and the statuses of the group. `delay_detail`
    says why no target is computed yet, "" if nothing delays it.
    """
    configs, config, tasks = group.configs, context.config, member.assigned
    endpoint_epoch, endpoints = endpoints_for(context, group, member, request)
    problem = group.configured if isinstance(group.configured, TopologyProblem) else None
    topics_to_create = problem.create if problem is not None else []
    if topics_to_create:
        context.cite("KSQ10")
    context.reply(
        reply_to,
        StreamsGroupHeartbeatResponse,
        context.cite("KSH58"),
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=SETTINGS.of(context).heartbeat_interval_ms,
        acceptable_recovery_lag=value_of(ACCEPTABLE_LAG, configs, config),
        task_offset_interval_ms=value_of(TASK_OFFSET_INTERVAL, configs, config),
        status=list(_statuses(context, group, member, request, delay_detail, problem)),
        active_tasks=task_ids(tasks.active) if includes_tasks else None,
        standby_tasks=task_ids(tasks.standby) if includes_tasks else None,
        warmup_tasks=task_ids(tasks.warm_up) if includes_tasks else None,
        endpoint_information_epoch=endpoint_epoch,
        partitions_by_user_endpoint=endpoints,
        create_topics=topics_to_create or UNSET,
        needs_topics=sorted(group.required) if problem is not None else UNSET,
    )


def _statuses(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    delay_detail: str,
    problem: TopologyProblem | None,
) -> Iterator[StreamsStatus]:
    """Yield the statuses in the member's answer, in Kafka's order."""
    assert group.topology is not None
    group_topology_epoch, member_topology_epoch = group.topology.epoch, member.topology_epoch
    if member_topology_epoch < group_topology_epoch:
        context.cite("KSH46")
        behind = f"is behind the group's topology epoch {group_topology_epoch}"
        detail = f"The member's topology epoch {member_topology_epoch} {behind}."
        yield StreamsStatus(StatusCode.STALE_TOPOLOGY, detail)
    if delay_detail:
        yield StreamsStatus(StatusCode.ASSIGNMENT_DELAYED, delay_detail)
    if problem is not None:
        context.cite("KSH59")
        yield StreamsStatus(problem.status, problem.detail)
    if group.shutdown_requested_by:
        context.cite("KSH60")
        detail = f"Member {group.shutdown_requested_by} asked to shut the application down."
        yield StreamsStatus(StatusCode.SHUTDOWN_APPLICATION, detail)
    tags = rack_aware_tags(group.configs, context.config)
    missing = [tag for tag in tags.split(",") if tag and tag not in member.client_tags]
    if missing and request.api_version >= FIRST_VERSION_WITH_MISSING_TAGS:
        context.cite("KSH61")
        missing_tags = counted(len(missing), "client tag")
        detail = f"The member lacks {missing_tags} of {RACK_AWARE_TAGS}: {', '.join(missing)}."
        yield StreamsStatus(StatusCode.MISSING_CLIENT_TAGS, detail)
