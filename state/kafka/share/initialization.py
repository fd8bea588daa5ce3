"""The state of a share group's partitions at the cluster's share coordinator, before they can be assigned.
Rows SI1 to SI20, SP12, SP16.

The core asks by a task in the group's state, which the group's view shows. What the share coordinator
answered comes from the log (`ShareStateResult`). Source: GroupMetadataManager
(maybeCreateInitializeShareGroupStateRequest, initializeShareGroupState, uninitializeShareGroupState).
"""

from collections.abc import Mapping

from msgspec.structs import replace

from state.errors import ErrorCode
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.history import EntryType
from state.kafka.modern.epochs import bump, come_to_rest
from state.kafka.modern.room import assignable_topics
from state.kafka.modern.wording import listed
from state.kafka.share.outcomes import RETRIABLE, in_words
from state.kafka.share_group import (
    NO_START_OFFSET,
    Asked,
    InitializedTopic,
    InitializingTopic,
    ShareGroup,
)
from state.kafka.share_requests import ShareStatePartition, ShareStateResult

Numbers = dict[str, list[int]]
"""Partitions, sorted, by topic name."""


def ask_for_initialization(context: StepContext) -> None:
    """Ask for the partitions of subscribed topics that are neither initialized nor asked for. What is asked
    for now can be assigned by a later heartbeat at the earliest.
    """
    group = context.group_of(ShareGroup)
    topics, _ = assignable_topics(group, context.config.group_max_partitions)
    wanted = {name: asked for name, topic in topics.items() if (asked := _wanted(context, group, topic))}
    if not wanted:
        return
    row = context.rule("SI5")
    for name, asked in wanted.items():
        topic_id = topics[name].topic_id
        group.deleting.pop(topic_id, None)
        initializing = group.initializing.setdefault(topic_id, InitializingTopic(name, {}))
        initializing.partitions = dict(sorted((initializing.partitions | asked).items()))
    group.initializing = dict(sorted(group.initializing.items()))
    partitions = {name: sorted(asked) for name, asked in wanted.items()}
    context.record(
        row,
        EntryType.SHARE_PARTITIONS_INITIALIZING,
        f"the share coordinator is asked to initialize {_sentence(wanted)}",
        partitions=partitions,
    )


def _wanted(context: StepContext, group: ShareGroup, topic: Topic) -> dict[int, Asked]:
    """What has to be asked of the topic. A partition whose task has failed is asked for as before (SP16)."""
    initialized, initializing = group.initialized.get(topic.topic_id), group.initializing.get(topic.topic_id)
    done = () if initialized is None else initialized.partitions
    asked = {} if initializing is None else initializing.partitions
    again = {number: one for number, one in asked.items() if not one.task and number < topic.partitions}
    wanted = {number: replace(one, task=context.cause, at_ms=context.now_ms) for number, one in again.items()}
    if wanted:
        context.rule("SP16")
    if len(done) + len(asked) < topic.partitions:
        row = "SI6" if initialized is None and initializing is None else "SI7"
        context.rule(row)
        start_offset = NO_START_OFFSET if row == "SI6" else 0
        first = Asked(context.cause, group.group_epoch, start_offset, context.now_ms)
        new = set(range(topic.partitions)).difference(done, asked)
        wanted |= dict.fromkeys(new, first)
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


def note_initialization(context: StepContext, result: ShareStateResult) -> None:
    """Take the outcome of a task to initialize. What is not of an open task changes nothing (row SP12)."""
    group = context.group_of(ShareGroup)
    ready: dict[bytes, set[int]] = {}
    failed: dict[int, Numbers] = {}  # by error code
    recorded_epoch, asked_at_ms = 0, context.now_ms
    for outcome in result.partitions:
        topic_id, number = outcome.topic_id.bytes, outcome.partition
        topic = group.initializing.get(topic_id)
        asked = None if topic is None else topic.partitions.get(number)
        if topic is None or asked is None or asked.task != result.task or number in ready.get(topic_id, ()):
            continue
        asked_at_ms = min(asked_at_ms, asked.at_ms)
        recorded_epoch = max(recorded_epoch, outcome.state_epoch or 0)
        if _is_initialized(outcome):
            ready.setdefault(topic_id, set()).add(number)
        else:
            failed.setdefault(outcome.error_code, {}).setdefault(topic.name, []).append(number)
            topic.partitions[number] = _after(asked, outcome)
    if ready:
        _take(context, group, ready, context.now_ms - asked_at_ms)
    for code, partitions in sorted(failed.items()):
        _record_failure(context, code, partitions)
    if recorded_epoch >= group.group_epoch:
        _overtake(context, group, recorded_epoch)
    if not ready and not failed:
        context.rule("SP12")


def _take(context: StepContext, group: ShareGroup, ready: Mapping[bytes, set[int]], took_ms: int) -> None:
    """Take these partitions for initialized."""
    names: Numbers = {}
    for topic_id, numbers in ready.items():
        topic = group.initializing[topic_id]
        topic.partitions = {n: asked for n, asked in topic.partitions.items() if n not in numbers}
        if not topic.partitions:
            del group.initializing[topic_id]
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
        partitions=_sorted(names),
        took_ms=took_ms,
    )


def _is_initialized(outcome: ShareStatePartition) -> bool:
    """Whether the share coordinator has state of the partition that the group can go on with. State of a
    later epoch with a start offset is that of the group when it was coordinated elsewhere (SK11).
    """
    is_adopted = (
        outcome.error_code == ErrorCode.FENCED_STATE_EPOCH
        and outcome.start_offset is not None
        and outcome.start_offset != NO_START_OFFSET
    )
    return outcome.error_code == ErrorCode.NONE or is_adopted


def _after(asked: Asked, outcome: ShareStatePartition) -> Asked:
    """What is known of a partition that failed. After an error that passes its task stays open."""
    if outcome.error_code in RETRIABLE:
        return replace(asked, error_code=outcome.error_code)
    epoch = asked.state_epoch
    if outcome.error_code == ErrorCode.FENCED_STATE_EPOCH and outcome.state_epoch is not None:
        epoch = max(epoch, outcome.state_epoch + 1)
    return replace(asked, task="", error_code=outcome.error_code, state_epoch=epoch)


def _record_failure(context: StepContext, code: int, partitions: Numbers) -> None:
    stays = code in RETRIABLE
    then = "it goes on trying" if stays else "the next heartbeat asks again"
    context.record(
        context.rule("SI10" if stays else "SI14"),
        EntryType.SHARE_PARTITIONS_NOT_INITIALIZED,
        f"the share coordinator has not initialized {in_words(partitions)}, error {code}: {then}",
        partitions=_sorted(partitions),
    )


def _overtake(context: StepContext, group: ShareGroup, recorded_epoch: int) -> None:
    """Raise the group epoch above a state epoch that the share coordinator has recorded (SK11)."""
    group.group_epoch = recorded_epoch
    reason = f"the share coordinator has recorded state epoch {recorded_epoch}: "
    reason += "the group was coordinated elsewhere"
    bump(context, context.rule("SI11"), reason)
    if not group.members:
        come_to_rest(context)


def _sorted(partitions: Numbers) -> Numbers:
    return {name: sorted(numbers) for name, numbers in sorted(partitions.items())}
