"""When a member's next heartbeat is due: in the group's heartbeat interval, or earlier, if the member waits
for its first partitions. Row SH28a.

Only a heartbeat computes a target and brings it to its member. In Kafka a member that joins thus waits for a
whole heartbeat interval (5 s), although the share coordinator has initialized its partitions before.
"""

from kafka_why.contract.errors import ErrorCode
from state.kafka.context import StepContext
from state.kafka.modern.epochs import due_in_ms
from state.kafka.share.outcomes import RETRIABLE
from state.kafka.share.settings import SETTINGS
from state.kafka.share_group import ShareGroup, ShareMember

SHORTEST_MS = 100
_FOR_STATE_MS = 1_000
"""Most tasks of the share coordinator take less."""
_TASK_AGE_MAX_MS = 10_000
"""After that a share coordinator may take any time. So a member has some ten such heartbeats at most."""
_MAY_PASS = RETRIABLE | {ErrorCode.NONE}


def next_heartbeat_ms(context: StepContext, member: ShareMember) -> int:
    """The HeartbeatIntervalMs of an answer to the member. It is the same for all that have partitions."""
    settings = SETTINGS.of(context)
    interval_ms = settings.heartbeat_interval_ms
    if member.assigned or not context.config.share_assign_at_once:
        return interval_ms
    group = context.group_of(ShareGroup)
    if group.is_rebalancing:
        wait_ms = due_in_ms(context, settings.assignment_interval_ms)
    elif _waits_for_state(context, group, member):
        wait_ms = _FOR_STATE_MS
    else:
        return interval_ms
    context.rule("SH28a")
    return min(interval_ms, max(wait_ms, SHORTEST_MS))


def _waits_for_state(context: StepContext, group: ShareGroup, member: ShareMember) -> bool:
    """Whether the share coordinator was asked a short time ago for partitions of a topic of the member, and
    not because it had failed before: each heartbeat asks again then (row SI14).
    """
    since_ms = context.now_ms - _TASK_AGE_MAX_MS
    return any(
        asked.task and asked.at_ms > since_ms and asked.error_code in _MAY_PASS
        for name in member.subscribed_topic_names
        if (topic := group.topics.get(name)) is not None
        and (initializing := group.initializing.get(topic.topic_id)) is not None
        for asked in initializing.partitions.values()
    )
