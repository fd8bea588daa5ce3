"""The state of a share group's partitions at the cluster's share coordinator, before they can be assigned.
Rows SI1 to SI20, SK6, SP12, SP16.

The core asks by a task in the group's state, which the group's view shows. What the share coordinator
answered comes from the log (`ShareStateResult`). Source: GroupMetadataManager
(maybeCreateInitializeShareGroupStateRequest, initializeShareGroupState, uninitializeShareGroupState).
"""

from collections.abc import Mapping

from msgspec.structs import replace

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.contract.kafka.wording import listed
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Topic
from state.kafka.modern.target import assignable_topics, bump, come_to_rest
from state.kafka.share.tasks import RETRIABLE, Ended, Numbers, in_words, ordered, watch_tasks
from state.kafka.share_group import (
    NO_START_OFFSET,
    Asked,
    InitializedTopic,
    InitializingTopic,
    ShareGroup,
)

_Then = tuple[str, str]
"""What follows the failure of a partition, in words, and the row that says so."""
_GOES_ON: _Then = "it goes on trying", "SI10"
_ASKED_AGAIN: _Then = "the next heartbeat asks again", "SI14"
_AS_BEFORE: _Then = "it is what it was", "SO12"
_ABOVE: _Then = "it is asked again above that epoch", "SI11"


def ask_for_initialization(context: StepContext) -> None:
    """Ask for the partitions of subscribed topics that are neither initialized nor asked for. What is asked
    for now can be assigned by a later heartbeat at the earliest.
    """
    group = context.group_of(ShareGroup)
    topics, _ = assignable_topics(group, context.config.group_max_partitions)
    wanted = {name: asked for name, topic in topics.items() if (asked := _wanted(context, group, topic))}
    if wanted:
        row = context.rule("SI5")
        for name in wanted:
            group.deleting.pop(topics[name].topic_id, None)
        ask(context, row, {topics[name].topic_id: (name, asked) for name, asked in wanted.items()})


def ask(context: StepContext, row: RuleId, wanted: Mapping[bytes, tuple[str, Mapping[int, Asked]]]) -> None:
    """Ask the share coordinator to initialize these partitions, by topic id. `row` has asked for them."""
    group = context.group_of(ShareGroup)
    for topic_id, (name, asked) in wanted.items():
        initializing = group.initializing.setdefault(topic_id, InitializingTopic(name, {}))
        initializing.partitions = dict(sorted({**initializing.partitions, **asked}.items()))
    group.initializing = dict(sorted(group.initializing.items()))
    watch_tasks(context)
    by_name = dict(sorted(wanted.values()))
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_INITIALIZING,
        f"the share coordinator is asked to initialize {_sentence(by_name)}",
        partitions=ordered(by_name),
    )


def _wanted(context: StepContext, group: ShareGroup, topic: Topic) -> dict[int, Asked]:
    """What has to be asked of the topic. A partition whose task has failed is asked for as before (SP16). No
    state begins before that of an earlier time is deleted (SK6).
    """
    deleting = group.deleting.get(topic.topic_id)
    if deleting is not None and deleting.task:
        context.rule("SK6")
        return {}
    initialized, initializing = group.initialized.get(topic.topic_id), group.initializing.get(topic.topic_id)
    asked = {} if initializing is None else initializing.partitions
    known = asked.keys() | (() if initialized is None else initialized.partitions)
    again = {number: one for number, one in asked.items() if not one.task and number < topic.partitions}
    wanted = {number: replace(one, task=context.cause, at_ms=context.now_ms) for number, one in again.items()}
    if wanted:
        context.rule("SP16")
    if len(known) < topic.partitions:
        row = "SI6" if initialized is None and initializing is None else "SI7"
        context.rule(row)
        start_offset = NO_START_OFFSET if row == "SI6" else 0
        first = Asked(context.cause, group.group_epoch, start_offset, context.now_ms)
        wanted |= dict.fromkeys(set(range(topic.partitions)) - known, first)
    return wanted


def _sentence(wanted: Mapping[str, Mapping[int, Asked]]) -> str:
    """`foo-0, foo-1 at epoch 2`, and where they begin if the brokers do not decide it."""
    texts: dict[tuple[int, int], list[str]] = {}
    for name, asked in wanted.items():
        for number, one in sorted(asked.items()):
            texts.setdefault((one.state_epoch, one.start_offset), []).append(f"{name}-{number}")
    parts = []
    for (epoch, start_offset), partitions in sorted(texts.items()):
        begin = "" if start_offset == NO_START_OFFSET else f" from offset {start_offset}"
        parts.append(f"{listed(partitions, 'partition')} at epoch {epoch}{begin}")
    return " and ".join(parts)


def note_initialization(context: StepContext, result: ShareStateResult) -> Ended:
    """Take the outcome of a task to initialize, and return the partitions whose tasks have ended. What is not
    of an open task changes nothing (row SP12).
    """
    group = context.group_of(ShareGroup)
    ended: Ended = {}
    ready: dict[bytes, set[int]] = {}
    failed: dict[tuple[int, _Then], Numbers] = {}  # by error code, and by what follows
    recorded_epoch, asked_at_ms = 0, context.now_ms
    for outcome in result.partitions:
        topic_id, number = outcome.topic_id.bytes, outcome.partition
        topic = group.initializing.get(topic_id)
        asked = None if topic is None else topic.partitions.get(number)
        if topic is None or asked is None or asked.task != result.task or number in ready.get(topic_id, ()):
            continue
        asked_at_ms = min(asked_at_ms, asked.at_ms)
        recorded_epoch = max(recorded_epoch, outcome.state_epoch or 0)
        if _is_initialized(asked, outcome):
            ready.setdefault(topic_id, set()).add(number)
            ended.setdefault(topic_id, {})[number] = ErrorCode.NONE
            continue
        after, then = _after(asked, outcome)
        failed.setdefault((outcome.error_code, then), {}).setdefault(topic.name, []).append(number)
        if after is None:
            topic.partitions.pop(number)
        else:
            topic.partitions[number] = after
        if after is None or not after.task:
            ended.setdefault(topic_id, {})[number] = outcome.error_code
    if ready:
        _take(context, group, ready, context.now_ms - asked_at_ms)
    group.initializing = {id_: topic for id_, topic in group.initializing.items() if topic.partitions}
    for (code, then), partitions in sorted(failed.items()):
        _record_failure(context, code, then, partitions)
    if recorded_epoch >= group.group_epoch:
        _overtake(context, group, recorded_epoch)
    if not ready and not failed:
        context.rule("SP12")
    return ended


def _take(context: StepContext, group: ShareGroup, ready: Mapping[bytes, set[int]], took_ms: int) -> None:
    """Take these partitions for initialized."""
    names: Numbers = {}
    for topic_id, numbers in ready.items():
        topic = group.initializing[topic_id]
        topic.partitions = {n: asked for n, asked in topic.partitions.items() if n not in numbers}
        initialized = group.initialized.setdefault(topic_id, InitializedTopic(topic.name, []))
        initialized.partitions = sorted(numbers.union(initialized.partitions))
        names[topic.name] = sorted(numbers)
    group.initialized = dict(sorted(group.initialized.items()))
    if context.config.share_assign_at_once:
        group.assignment_timestamp_ms = 0
    context.record(
        context.rule("SI13"),
        EntryType.SHARE_PARTITIONS_INITIALIZED,
        f"the share coordinator has initialized {in_words(names)}",
        partitions=ordered(names),
        took_ms=took_ms,
    )


def _is_initialized(asked: Asked, outcome: ShareStatePartition) -> bool:
    """Whether the share coordinator has state of the partition that the group can go on with. State of a
    later epoch with a start offset is that of the group when it was coordinated elsewhere (SK11). An
    administrator wants another start offset than that.
    """
    is_adopted = (
        not asked.altered
        and outcome.error_code == ErrorCode.FENCED_STATE_EPOCH
        and outcome.start_offset is not None
        and outcome.start_offset != NO_START_OFFSET
    )
    return outcome.error_code == ErrorCode.NONE or is_adopted


def _after(asked: Asked, outcome: ShareStatePartition) -> tuple[Asked | None, _Then]:
    """What is known of a partition that failed, and what follows. After an error that passes its
    task stays open. Where an administrator's start offset failed, the partition is what it was before.
    """
    code = outcome.error_code
    if code in RETRIABLE:
        return replace(asked, error_code=code), _GOES_ON
    epoch = asked.state_epoch
    if code == ErrorCode.FENCED_STATE_EPOCH and outcome.state_epoch is not None:
        epoch = max(epoch, outcome.state_epoch + 1)
    if not asked.altered:
        return replace(asked, task="", error_code=code, state_epoch=epoch), _ASKED_AGAIN
    if epoch == asked.state_epoch:
        return None, _AS_BEFORE
    # The task is named by the request and the epoch, so that outcomes in parts lead to one and the same.
    task = f"{asked.task.partition('@')[0]}@{epoch}"
    return replace(asked, task=task, error_code=code, state_epoch=epoch), _ABOVE


def _record_failure(context: StepContext, code: int, then: _Then, partitions: Numbers) -> None:
    words, row = then
    context.record(
        context.rule(row),
        EntryType.SHARE_PARTITIONS_NOT_INITIALIZED,
        f"the share coordinator has not initialized {in_words(partitions)}, error {code}: {words}",
        partitions=ordered(partitions),
        error_code=code,
    )


def _overtake(context: StepContext, group: ShareGroup, recorded_epoch: int) -> None:
    """Raise the group epoch above a state epoch that the share coordinator has recorded (SK11)."""
    group.group_epoch = recorded_epoch
    reason = f"the share coordinator has recorded state epoch {recorded_epoch}: "
    reason += "the group was coordinated elsewhere"
    bump(context, context.rule("SI11"), reason)
    if not group.members:
        come_to_rest(context)
