"""Derives the history of share groups' partitions, whose state is at the share coordinator (rows OB40 to OB44
of docs/observe.md).

The group coordinator sends requests to the share coordinator to initialize partitions and to delete their
state. It writes each request and its result to the log (ShareGroupStatePartitionMetadata). Target assignments
have only initialized partitions.
"""

from collections.abc import Iterable, Mapping, Sequence

from kafka_why.contract.kafka.history import SHARE, EntryType
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.observed.group import Epochs, ShareState
from kafka_why.observed.observation import Observation, listed_partitions
from kafka_why.observed.records import MemberSubscription, SharePartitions

# Kafka's name for a topic that it no longer knows.
_UNKNOWN_TOPIC = "<UNKNOWN>"


def describe_change(before: MemberSubscription, now: MemberSubscription) -> str:
    """Return the object of "the member changed", or "" if the change does not lead to a new epoch."""
    return "what it subscribes to" if set(before.topic_names) != set(now.topic_names) else ""


def observe_partitions(seen: Observation, record: SharePartitions) -> None:
    """Apply the new states of the group's partitions at the share coordinator."""
    epochs = seen.epochs(SHARE)
    if epochs.is_ending:  # the state was deleted before the group
        return
    seen.view_changed = True
    before = epochs.share or ShareState(seen.at.time_ms)
    names = {topic_id: name for topic_id, name in record.names.items() if name != _UNKNOWN_TOPIC}
    now = epochs.share = ShareState(
        first_ms=before.first_ms,
        initializing=record.initializing,
        initialized=record.initialized,
        deleting=list(record.deleting),
        names={**before.names, **names},
        since_ms={t: before.since_ms.get(t, seen.at.time_ms) for t in record.initializing},
    )
    _record_new(seen, before, now)
    _record_removed(seen, before, now)
    # The entries above needed the names of removed topics, too.
    now.names = {t: now.names[t] for t in _topic_ids(now) if t in now.names}


def _record_new(seen: Observation, before: ShareState, now: ShareState) -> None:
    """Record the partitions that are now initializing, and those that are now initialized."""
    initializing, initialized = (
        without(now.initializing, before.initializing),
        without(now.initialized, before.initialized),
    )
    if initializing:
        text = f"the share coordinator was asked to initialize {listed_partitions(seen, initializing)}"
        _record(seen, "OB40", EntryType.SHARE_PARTITIONS_INITIALIZING, text, initializing)
    if initialized:
        requested_ms = [before.since_ms[topic_id] for topic_id in initialized if topic_id in before.since_ms]
        took_ms = seen.at.time_ms - min(requested_ms) if requested_ms else None
        text = f"the share coordinator has initialized {listed_partitions(seen, initialized)}"
        _record(seen, "OB41", EntryType.SHARE_PARTITIONS_INITIALIZED, text, initialized, took_ms)


def _record_removed(seen: Observation, before: ShareState, now: ShareState) -> None:
    """Record the partitions that are in no state any longer, and those whose state is being deleted."""
    deleting = dict.fromkeys(now.deleting, _ALL_NUMBERS)
    failed = without(before.initializing, now.initializing, now.initialized, deleting)
    no_longer_initialized = without(before.initialized, now.initialized, deleting)
    kind = EntryType.SHARE_PARTITIONS_REMOVED
    if failed:
        failed_text = listed_partitions(seen, failed)
        text = f"{failed_text} are no longer initializing: that failed, or the topic was deleted"
        _record(seen, "OB42", EntryType.SHARE_PARTITIONS_NOT_INITIALIZED, text, failed)
    if no_longer_initialized:
        initialized_text = listed_partitions(seen, no_longer_initialized)
        text = f"{initialized_text} are no longer initialized: the topic was deleted"
        _record(seen, "OB42", kind, text, no_longer_initialized)
    newly_deleting = [topic_id for topic_id in now.deleting if topic_id not in before.deleting]
    if newly_deleting:
        text = f"the share coordinator was asked to delete the state of {_topic_names(now, newly_deleting)}"
        partitions = {t: before.initialized.get(t, []) for t in newly_deleting}
        _record(seen, "OB44", EntryType.SHARE_PARTITIONS_DELETING, text, partitions)
    deleted = [topic_id for topic_id in before.deleting if topic_id not in _topic_ids(now)]
    if deleted:  # a topic that is initializing again has an entry of OB40
        text = f"the state of {_topic_names(now, deleted)} was deleted, or the topic itself"
        _record(seen, "OB44", kind, text, {topic_id: [] for topic_id in deleted})


_ALL_NUMBERS = range(2**31)  # of all possible partitions of a topic


def _record(
    seen: Observation,
    rule: str,
    kind: EntryType,
    reason: str,
    partitions: Partitions,
    took_ms: int | None = None,
) -> None:
    seen.record_or_update(
        rule, kind, reason, partitions=seen.group.partitions_by_name(partitions, seen.names), took_ms=took_ms
    )


def _topic_names(state: ShareState, topic_ids: Iterable[bytes]) -> str:
    return ", ".join(sorted(state.names.get(topic_id, _UNKNOWN_TOPIC) for topic_id in topic_ids))


def _topic_ids(state: ShareState) -> set[bytes]:
    """Return the topics with partitions in any state."""
    return {*state.initializing, *state.initialized, *state.deleting}


def without(partitions: Partitions, *others: Mapping[bytes, Sequence[int]]) -> Partitions:
    """Return the partitions that are in none of `others`."""
    remaining = {
        topic_id: [n for n in numbers if not any(n in other.get(topic_id, ()) for other in others)]
        for topic_id, numbers in partitions.items()
    }
    return {topic_id: numbers for topic_id, numbers in remaining.items() if numbers}


def epoch_reasons(seen: Observation, epochs: Epochs) -> list[tuple[str, str]]:
    """Return the row and the text of the reason for a new epoch, or [] if there is none.

    The reason is that initialized partitions are in no target assignment. Source:
    GroupMetadataManager.initializedAssignmentPending.
    """
    state = epochs.share
    if state is None:
        return []
    subscribed = {name for member in epochs.subscriptions.values() for name in member.topic_names}
    pending = {
        topic_id: missing
        for topic_id, numbers in state.initialized.items()
        if state.names.get(topic_id) in subscribed and (missing := _unassigned(epochs, topic_id, numbers))
    }
    if not pending:
        return []
    text = f"{listed_partitions(seen, pending)} are initialized and were in no target assignment"
    return [("OB43", text)]


def _unassigned(epochs: Epochs, topic_id: bytes, numbers: list[int]) -> list[int]:
    """Return those of a topic's partitions `numbers` that no member has in its target."""
    targeted = {n for target in epochs.targets.values() for n in target.get(topic_id, ())}
    return [n for n in numbers if n not in targeted]
