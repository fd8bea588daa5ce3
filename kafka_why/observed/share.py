"""Derives the history of share groups' partitions, whose state is at the share coordinator. Rows OB40 to
OB44.

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
_UNKNOWN = "<UNKNOWN>"


def changed(before: MemberSubscription, now: MemberSubscription) -> str:
    """Return a text about the member's change, or "" if it does not lead to a new epoch."""
    return "what it subscribes to" if set(before.topic_names) != set(now.topic_names) else ""


def observe_partitions(seen: Observation, record: SharePartitions) -> None:
    """Apply the new states of the group's partitions at the share coordinator."""
    epochs = seen.epochs(SHARE)
    if epochs.is_ending:  # the state was deleted before the group
        return
    seen.has_news = True
    before = epochs.share or ShareState(seen.at.time_ms)
    names = {topic_id: name for topic_id, name in record.names.items() if name != _UNKNOWN}
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
    now.names = {t: now.names[t] for t in _topics(now) if t in now.names}


def _record_new(seen: Observation, before: ShareState, now: ShareState) -> None:
    asked, done = without(now.initializing, before.initializing), without(now.initialized, before.initialized)
    if asked:
        text = f"the share coordinator was asked to initialize {listed_partitions(seen, asked)}"
        _record(seen, "OB40", EntryType.SHARE_PARTITIONS_INITIALIZING, text, asked)
    if done:
        since = [before.since_ms[topic_id] for topic_id in done if topic_id in before.since_ms]
        took_ms = seen.at.time_ms - min(since) if since else None
        text = f"the share coordinator has initialized {listed_partitions(seen, done)}"
        _record(seen, "OB41", EntryType.SHARE_PARTITIONS_INITIALIZED, text, done, took_ms)


def _record_removed(seen: Observation, before: ShareState, now: ShareState) -> None:
    deleting = dict.fromkeys(now.deleting, _ALL)
    failed = without(before.initializing, now.initializing, now.initialized, deleting)
    ended = without(before.initialized, now.initialized, deleting)
    kind = EntryType.SHARE_PARTITIONS_REMOVED
    if failed:
        which = listed_partitions(seen, failed)
        text = f"{which} are no longer initializing: that failed, or the topic was deleted"
        _record(seen, "OB42", EntryType.SHARE_PARTITIONS_NOT_INITIALIZED, text, failed)
    if ended:
        text = f"{listed_partitions(seen, ended)} are no longer initialized: the topic was deleted"
        _record(seen, "OB42", kind, text, ended)
    asked = [topic_id for topic_id in now.deleting if topic_id not in before.deleting]
    if asked:
        text = f"the share coordinator was asked to delete the state of {_names(now, asked)}"
        had = {t: before.initialized.get(t, []) for t in asked}
        _record(seen, "OB44", EntryType.SHARE_PARTITIONS_DELETING, text, had)
    deleted = [topic_id for topic_id in before.deleting if topic_id not in _topics(now)]
    if deleted:  # a topic that is initializing again has an entry of OB40
        text = f"the state of {_names(now, deleted)} was deleted, or the topic itself"
        _record(seen, "OB44", kind, text, {topic_id: [] for topic_id in deleted})


_ALL = range(2**31)


def _record(
    seen: Observation,
    rule: str,
    kind: EntryType,
    reason: str,
    partitions: Partitions,
    took_ms: int | None = None,
) -> None:
    seen.record_if_seen(
        rule, kind, reason, partitions=seen.group.shown(partitions, seen.names), took_ms=took_ms
    )


def _names(state: ShareState, topic_ids: Iterable[bytes]) -> str:
    return ", ".join(sorted(state.names.get(topic_id, _UNKNOWN) for topic_id in topic_ids))


def _topics(state: ShareState) -> set[bytes]:
    return {*state.initializing, *state.initialized, *state.deleting}


def without(partitions: Partitions, *others: Mapping[bytes, Sequence[int]]) -> Partitions:
    """Return the partitions that are in none of `others`."""
    left = {
        topic_id: [n for n in numbers if not any(n in other.get(topic_id, ()) for other in others)]
        for topic_id, numbers in partitions.items()
    }
    return {topic_id: numbers for topic_id, numbers in left.items() if numbers}


def reasons(seen: Observation, epochs: Epochs) -> list[tuple[str, str]]:
    """Return the reason for a new epoch if initialized partitions are in no target assignment.

    Source: GroupMetadataManager.initializedAssignmentPending.
    """
    state = epochs.share
    if state is None:
        return []
    wanted = {name for member in epochs.subscriptions.values() for name in member.topic_names}
    pending = {
        topic_id: missing
        for topic_id, numbers in state.initialized.items()
        if state.names.get(topic_id) in wanted and (missing := _unassigned(epochs, topic_id, numbers))
    }
    if not pending:
        return []
    text = f"{listed_partitions(seen, pending)} are initialized and were in no target assignment"
    return [("OB43", text)]


def _unassigned(epochs: Epochs, topic_id: bytes, numbers: list[int]) -> list[int]:
    given = {n for target in epochs.targets.values() for n in target.get(topic_id, ())}
    return [n for n in numbers if n not in given]
