"""The findings about a group, each in one sentence, the most serious first. For a share group also lines
about its partitions, and about the tasks that the cluster's share coordinator has to do for it.

`kafka_why.lag.definitions` defines when a lag is harmful. `kafka_why.why` explains the group's rebalances. A
view is the latest snapshot of a group's state.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct, UnsetType

from kafka_why.contract.kafka.history import NOT_READY
from kafka_why.contract.kafka.snapshot import GroupSnapshot, ShareSnapshot
from kafka_why.contract.protocols.subscriptions import by_topic
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.lag.definitions import WINDOW_MS, Partition, PartitionLag, harmful_lags
from kafka_why.page.fleet import GroupFacts
from kafka_why.page.words import thousands
from kafka_why.rocketmq_group import (
    TO_DO_DUPLICATE,
    TO_DO_SUBSCRIPTIONS,
    different_subscribers,
    duplicate_places,
)
from kafka_why.why.model import CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.reconciling import flat, partition_count
from kafka_why.why.report import Report, client_of
from kafka_why.why.share_state import error_text, open_requests, request_text
from kafka_why.why.text import names_of
from kafka_why.wording import count, duration_text, partitions_text, shortened

LONG_REQUEST_MS = 60_000
"""The age at which an open task is reported. It is normal while a share coordinator moves."""


def share_snapshot(view: GroupSnapshot) -> ShareSnapshot | None:
    """Return the part of a view that only share groups have, or None for another group."""
    return (view.consumer.share or None) if view.consumer else None  # UNSET is false


def share_group_lines(view: GroupSnapshot, now_ms: int) -> list[str]:
    """Return lines about the partitions and open tasks of a share group, or [] for other groups."""
    share = share_snapshot(view)
    return [] if share is None else [*_share_lines(view, share, now_ms)]


def _share_lines(view: GroupSnapshot, share: ShareSnapshot, now_ms: int) -> Iterator[str]:
    counts = {
        state: partition_count(getattr(share, state)) for state in ("initialized", "initializing", "deleting")
    }
    parts = [f"{number} {state}" for state, number in counts.items() if number]
    yield f"{count(sum(counts.values()), 'partition')}: {', '.join(parts)}" if parts else "none"
    for request in open_requests(share):
        yield request_text(request, now_ms)
    assigned = (flat(member.consumer.assigned) for member in view.members if member.consumer is not None)
    unassigned = flat(share.initialized).difference(*assigned)
    if view.members and unassigned:
        yield f"no member has {partitions_text(by_topic(unassigned))}"


def find_overdue_tasks(view: GroupSnapshot, now_ms: int) -> tuple[str, int] | None:
    """Return a sentence about the tasks that have been open for LONG_REQUEST_MS, and the time of the oldest.

    The result is None if there is no such task.
    """
    share = share_snapshot(view)
    requests = [] if share is None else open_requests(share)
    overdue = [request for request in requests if now_ms - request.since_ms >= LONG_REQUEST_MS]
    if not overdue:
        return None
    oldest = overdue[0]
    number = count(sum(partition_count(request.partitions) for request in overdue), "partition")
    failure = "has not deleted the state of" if oldest.is_deletion else "has not initialized"
    error = "" if oldest.error_code is None else f", with {error_text(oldest.error_code)}"
    open_for = duration_text(now_ms - oldest.since_ms)
    partitions = partitions_text(oldest.partitions)
    return f"The share coordinator {failure} {number} for {open_for}{error}: {partitions}", oldest.since_ms


OFTEN = 5
"""The number of rebalances in an hour at which a group is reported."""
LONG_MS = 30_000
"""A rebalance that takes longer is long."""

# A group's states during a rebalance, and that of a streams group whose topology is not valid.
_NOT_SETTLED = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", NOT_READY)


class FindingKind(IntEnum):
    """The kinds of findings, the most serious first."""

    QUARANTINED = 0
    REBALANCING = 1  # for LONG_MS
    STUCK = 2  # a committed offset stands still while records arrive
    NO_OWNER = 3  # records wait in a partition that no member holds
    NOT_INITIALIZED = 4  # an overdue task for the share coordinator
    FALLING_BEHIND = 5
    DUPLICATE_CLIENT_ID = 6
    DIFFERENT_SUBSCRIPTIONS = 7
    OFTEN = 8  # at least OFTEN rebalances in the last hour


class Finding(Struct, frozen=True):
    """A fault of a group."""

    kind: FindingKind
    sentence: str
    since_ms: int | None = None  # None if its beginning is unknown


def findings(facts: GroupFacts, report: Report | None, now_ms: int) -> list[Finding]:
    """Return the group's present faults, the most serious first.

    `report` covers the last hour, or is None if the group has no entries of that time.
    """
    if facts.view is None:
        return []
    faults = []
    if facts.view.quarantined is not None:
        sentence = f"It is quarantined, so its deadlines do not fire: {facts.view.quarantined}"
        faults.append(Finding(FindingKind.QUARANTINED, sentence))
    if isinstance(facts.view, RocketMqSnapshot):
        faults += _rocketmq_findings(facts.view)
    if isinstance(facts.view, GroupSnapshot):
        faults += [*_rebalancing_findings(facts.view, report, now_ms)]
        faults += [*_lag_findings(facts, report, now_ms)]
        if (overdue := find_overdue_tasks(facts.view, now_ms)) is not None:
            sentence, since_ms = overdue
            faults.append(Finding(FindingKind.NOT_INITIALIZED, sentence, since_ms))
    if report is not None and (number := len(report.rebalances)) >= OFTEN:
        sentence = f"{number} rebalances in the last hour{_main_cause(report.rebalances)}"
        faults.append(Finding(FindingKind.OFTEN, sentence))
    return sorted(faults, key=lambda one: one.kind)


def _rocketmq_findings(view: RocketMqSnapshot) -> Iterator[Finding]:
    # In a broadcasting group each client consumes all queues, so a shared id does no harm.
    shared_ids = {} if view.message_model is MessageModel.BROADCASTING else duplicate_places(view)
    if shared_ids:
        each = "; ".join(f"{client_id}: {shortened(places)}" for client_id, places in shared_ids.items())
        sentence = f"Clients share one id, so queues may have no consumer: {each}. To do: {TO_DO_DUPLICATE}"
        yield Finding(FindingKind.DUPLICATE_CLIENT_ID, sentence)
    if differing := different_subscribers(view):
        each = "; ".join(
            f"{shortened(topics) or 'nothing'}: {shortened(clients)}" for topics, clients in differing.items()
        )
        sentence = f"Its clients have different subscriptions: {each}. To do: {TO_DO_SUBSCRIPTIONS}"
        yield Finding(FindingKind.DIFFERENT_SUBSCRIPTIONS, sentence)


def _rebalancing_findings(view: GroupSnapshot, report: Report | None, now_ms: int) -> Iterator[Finding]:
    """Yield a finding if a rebalance has been under way, or the group not ready, for LONG_MS."""
    last = None if report is None else next(reversed(report.rebalances), None)
    current = last if last is not None and last.outcome is RebalanceOutcome.UNDER_WAY else None
    since_ms = view.state_timestamp_ms if current is None else current.began_ms
    if view.state not in _NOT_SETTLED or now_ms - since_ms < LONG_MS:
        return
    lasts = duration_text(now_ms - since_ms)
    if view.state == NOT_READY:
        streams = view.consumer.streams if view.consumer else None
        detail = (streams.not_ready or "").removesuffix(".") if streams else ""
        sentence = (
            f"For {lasts}, no member has had a task. {detail}"
            if detail
            else f"For {lasts}, topics of its topology have been missing or had wrong numbers of partitions"
        )
        yield Finding(FindingKind.REBALANCING, sentence, since_ms)
        return
    waits = ""
    if report is not None and current is not None and (awaited := awaited_members(current)):
        waits = f" and waits for {shortened(list(map(names_of(report).of, awaited)))}"
    yield Finding(FindingKind.REBALANCING, f"It has been rebalancing for {lasts}{waits}", since_ms)


def awaited_members(rebalance: Rebalance) -> list[str]:
    """Return the members that a rebalance in progress still awaits."""
    if rebalance.has_epochs:
        return [one.member_id for one in rebalance.progress if one.settled_after_ms is None]
    if rebalance.generation_to is not None:  # all have joined, but the leader has not sent the assignment
        return [rebalance.leader_id] if rebalance.leader_id is not None else []
    joined_or_removed = {member.member_id for member in rebalance.joined}
    joined_or_removed |= {member.member_id for member in rebalance.removed}
    return [member_id for member_id in rebalance.waited_for if member_id not in joined_or_removed]


def _lag_findings(facts: GroupFacts, report: Report | None, now_ms: int) -> Iterator[Finding]:
    """Yield a finding for each kind of harmful lag. It names the partition with the greatest lag."""
    harmful = harmful_lags(facts.lags, facts.ownership, now_ms)
    if harmful.stuck:
        (topic, number), lag = _greatest_lag(harmful.stuck)
        unchanged_for = duration_text(now_ms - lag.stands_since_ms)
        owner = facts.ownership.holders[topic, number]
        owner_name = owner if report is None else names_of(report).of(owner)
        presence = "keeps its session"
        if _is_rebalance_unseen(facts.view):
            presence = "has not left, unless a rebalance is under way, which the log does not show"
        yield Finding(
            FindingKind.STUCK,
            f"{topic}-{number} has had the same committed offset for {unchanged_for} while records arrive, "
            f"{_behind_text(lag)}; its owner {owner_name} {presence}{_more_text(harmful.stuck)}",
            lag.stands_since_ms,
        )
    if harmful.without_owner:
        (topic, number), lag = _greatest_lag(harmful.without_owner)
        since_ms = max(facts.ownership.settled_ms or 0, lag.committed_ms)
        if facts.ownership.topics is None:  # the group has no members
            records = sum(lag.records or 0 for lag in harmful.without_owner.values())
            sentence = f"It has no members, and {thousands(records)} records wait for it"
        else:
            sentence = (
                f"No member holds {topic}-{number}, {_behind_text(lag)}{_more_text(harmful.without_owner)}"
            )
        yield Finding(FindingKind.NO_OWNER, sentence, since_ms)
    if harmful.falling_behind:
        (topic, number), lag = _greatest_lag(harmful.falling_behind)
        yield Finding(
            FindingKind.FALLING_BEHIND,
            f"{topic}-{number} has fallen behind within {duration_text(WINDOW_MS)} although the group "
            f"commits, {_behind_text(lag)}{_more_text(harmful.falling_behind)}",
        )


def _is_rebalance_unseen(view: object) -> bool:
    """Return True if a rebalance of this group leaves no record when it begins.

    The cluster's own coordinator logs a classic group's rebalance only at its assignment.
    """
    return isinstance(view, GroupSnapshot) and view.observed is True and isinstance(view.consumer, UnsetType)


def _greatest_lag(lags: Mapping[Partition, PartitionLag]) -> tuple[Partition, PartitionLag]:
    return max(lags.items(), key=lambda item: (item[1].records or 0, item[0]))


def _behind_text(lag: PartitionLag) -> str:
    """Return a text such as `48 210 records (12 min 5 s) behind`."""
    time = f" ({duration_text(lag.ms)})" if lag.ms is not None else ""
    return f"{thousands(lag.records or 0)} records{time} behind"


def _more_text(lags: Mapping[Partition, PartitionLag]) -> str:
    return f", and {count(len(lags) - 1, 'partition')} more" if len(lags) > 1 else ""


# What happened before a rebalance, by the kind of its cause.
_SENTENCES = {
    CauseKind.MEMBER_JOINED: "{client} joined",
    CauseKind.MEMBER_LEFT: "{client} left",
    CauseKind.MEMBER_GONE: "{client} left or expired",
    CauseKind.MEMBERS_CHANGED: "members came and went",
    CauseKind.JOINED_AGAIN: "a member joined again",
    CauseKind.SESSION_TIMEOUT: "the session of {client} timed out",
    CauseKind.SYNC_TIMEOUT: "{client} sent no SyncGroup in time",
    CauseKind.REQUEST_TOO_LARGE: "the SyncGroup of {client} was too large",
    CauseKind.NOT_STORED: "the assignment was not stored",
    CauseKind.OVER_SIZE: "the group was over its size",
    CauseKind.METADATA_CHANGED: "{client} changed its metadata",
    CauseKind.LEADER_REJOINED: "the leader {client} joined again",
    CauseKind.STATIC_MEMBER_RETURNED: "the static member {client} came back",
    CauseKind.SUBSCRIPTION_CHANGED: "{client} changed its subscription",
    CauseKind.TOPICS_CHANGED: "topics changed",
    CauseKind.PATTERN_RESOLVED: "a pattern matched other topics",
    CauseKind.REBALANCE_TIMEOUT: "{client} did not give partitions up in time",
    CauseKind.JOIN_TIMEOUT: "{client} did not join in time",
    CauseKind.CONVERTED: "the group changed its protocol",
    CauseKind.MEMBER_CHANGED: "{client} changed its settings",
    CauseKind.SETTINGS_CHANGED: "settings of the assignment changed",
    CauseKind.PARTITIONS_INITIALIZED: "share partitions were initialized",
    CauseKind.OFFSETS_ALTERED: "offsets were altered",
    CauseKind.COORDINATED_ELSEWHERE: "the share coordinator had a later state",
    CauseKind.UNKNOWN: "the cause is not in the history",
}


def _main_cause(rebalances: Sequence[Rebalance]) -> str:
    """Return a text such as `: before 13 of them the session of worker-3 timed out`."""
    total = len(rebalances)
    # Name one client and one kind of cause if they explain half of all rebalances. Otherwise name one client
    # if it explains half of them, or else only the most frequent kind.
    (kind, client), times = Counter((r.cause.kind, client_of(r)) for r in rebalances).most_common(1)[0]
    if times * 2 >= total:
        return f": before {_part_text(times, total)} {_SENTENCES[kind].format(client=client)}"
    client, times = Counter(map(client_of, rebalances)).most_common(1)[0]
    if times * 2 >= total:
        kinds = Counter(r.cause.kind for r in rebalances if client_of(r) == client)
        causes = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common(3))
        return f": {client} caused {_part_text(times, total)} ({causes})"
    kind, times = Counter(r.cause.kind for r in rebalances).most_common(1)[0]
    return f": before {_part_text(times, total)} {_SENTENCES[kind].format(client='a member')}"


def _part_text(times: int, total: int) -> str:
    return "each" if times == total else f"{times} of them"
