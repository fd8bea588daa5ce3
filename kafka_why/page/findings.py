"""The findings about a group, each in one sentence, the most serious first; and the overdue partitions of
share groups.

`kafka_why.lag.definitions` defines when a lag is harmful. `kafka_why.why` explains the group's rebalances.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct, UnsetType

from kafka_why.contract.kafka.history import NOT_READY
from kafka_why.contract.kafka.snapshot import GroupSnapshot, NamedPartitions, ShareSnapshot
from kafka_why.contract.protocols.subscriptions import by_topic
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.lag.definitions import WINDOW_MS, Partition, PartitionLag, troubles
from kafka_why.page.fleet import GroupFacts
from kafka_why.page.words import thousands
from kafka_why.rocketmq_group import (
    TO_DO_DUPLICATE,
    TO_DO_SUBSCRIPTIONS,
    different_subscribers,
    duplicate_places,
)
from kafka_why.why.model import CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.reconciling import flat
from kafka_why.why.report import Report, client_of
from kafka_why.why.share_state import error_text, open_requests, request_text
from kafka_why.why.text import names_of
from kafka_why.wording import count, duration_text, partitions_text, shortened

LONG_REQUEST_MS = 60_000
"""Tasks normally stay open this long while a share coordinator moves."""


def share_of(view: GroupSnapshot) -> ShareSnapshot | None:
    """Return the part of a view that only share groups have, or None."""
    return (view.consumer.share or None) if view.consumer else None


def lines_of(view: GroupSnapshot, now_ms: int) -> list[str]:
    """Return lines about numbers of partitions, open tasks, and unassigned partitions."""
    share = share_of(view)
    return [] if share is None else [*_lines(view, share, now_ms)]


def _lines(view: GroupSnapshot, share: ShareSnapshot, now_ms: int) -> Iterator[str]:
    numbers = {kind: _number(getattr(share, kind)) for kind in ("initialized", "initializing", "deleting")}
    parts = [f"{number} {kind}" for kind, number in numbers.items() if number]
    yield f"{count(sum(numbers.values()), 'partition')}: {', '.join(parts)}" if parts else "none"
    for asked in open_requests(share):
        yield request_text(asked, now_ms)
    held = (flat(member.consumer.assigned) for member in view.members if member.consumer is not None)
    idle = flat(share.initialized).difference(*held)
    if view.members and idle:
        yield f"no member has {partitions_text(by_topic(idle))}"


def overdue(view: GroupSnapshot, now_ms: int) -> tuple[str, int] | None:
    """Return a sentence about the tasks that have been open too long, and the time of the oldest, or None."""
    share = share_of(view)
    late = (
        [one for one in open_requests(share) if now_ms - one.since_ms >= LONG_REQUEST_MS]
        if share is not None
        else []
    )
    if not late:
        return None
    first = late[0]
    number = count(sum(_number(one.partitions) for one in late), "partition")
    what = "has not deleted the state of" if first.is_deletion else "has not initialized"
    error = "" if first.error_code is None else f", with {error_text(first.error_code)}"
    lasted = duration_text(now_ms - first.since_ms)
    sentence = (
        f"The share coordinator {what} {number} for {lasted}{error}: {partitions_text(first.partitions)}"
    )
    return sentence, first.since_ms


def _number(partitions: NamedPartitions) -> int:
    return sum(map(len, partitions.values()))


OFTEN = 5
"""The number of rebalances in an hour at which a group is reported."""
LONG_MS = 30_000
"""A rebalance that takes longer is long."""

_NOT_SETTLED = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", NOT_READY)


class FindingKind(IntEnum):
    """The kinds of findings, the most serious first."""

    QUARANTINED = 0
    REBALANCING = 1
    STUCK = 2
    NO_OWNER = 3
    NOT_INITIALIZED = 4
    FALLING_BEHIND = 5
    DUPLICATE_CLIENT_ID = 6
    DIFFERENT_SUBSCRIPTIONS = 7
    OFTEN = 8


class Finding(Struct, frozen=True):
    """A fault of a group."""

    kind: FindingKind
    sentence: str
    since_ms: int | None = None  # None if its beginning is unknown


def findings(facts: GroupFacts, report: Report | None, now_ms: int) -> list[Finding]:
    """Return the group's present faults.

    `report` is on its last hour, or None if it has no entries.
    """
    if facts.view is None:
        return []
    found = []
    if facts.view.quarantined is not None:
        sentence = f"It is quarantined, so its deadlines do not fire: {facts.view.quarantined}"
        found.append(Finding(FindingKind.QUARANTINED, sentence))
    if isinstance(facts.view, RocketMqSnapshot):
        found += _rocketmq_findings(facts.view)
    if isinstance(facts.view, GroupSnapshot):
        found += [*_rebalancing(facts.view, report, now_ms)]
        found += [*_lag_findings(facts, report, now_ms)]
        if (late := overdue(facts.view, now_ms)) is not None:
            found.append(Finding(FindingKind.NOT_INITIALIZED, *late))
    if report is not None and (number := len(report.rebalances)) >= OFTEN:
        sentence = f"{number} rebalances in the last hour{_main_cause(report.rebalances)}"
        found.append(Finding(FindingKind.OFTEN, sentence))
    return sorted(found, key=lambda one: one.kind)


def _rocketmq_findings(view: RocketMqSnapshot) -> Iterator[Finding]:
    shared = {} if view.message_model is MessageModel.BROADCASTING else duplicate_places(view)
    if shared:
        each = "; ".join(f"{client_id}: {shortened(places)}" for client_id, places in shared.items())
        sentence = f"Clients share one id, so queues may have no consumer: {each}. To do: {TO_DO_DUPLICATE}"
        yield Finding(FindingKind.DUPLICATE_CLIENT_ID, sentence)
    if differing := different_subscribers(view):
        each = "; ".join(
            f"{shortened(own) or 'nothing'}: {shortened(some)}" for own, some in differing.items()
        )
        sentence = f"Its clients have different subscriptions: {each}. To do: {TO_DO_SUBSCRIPTIONS}"
        yield Finding(FindingKind.DIFFERENT_SUBSCRIPTIONS, sentence)


def _rebalancing(view: GroupSnapshot, report: Report | None, now_ms: int) -> Iterator[Finding]:
    last = report.rebalances[-1] if report is not None and report.rebalances else None
    under_way = last is not None and last.outcome is RebalanceOutcome.UNDER_WAY
    since_ms = last.began_ms if last is not None and under_way else view.state_timestamp_ms
    if view.state not in _NOT_SETTLED or now_ms - since_ms < LONG_MS:
        return
    awaited = awaited_members(last) if last is not None and under_way else []
    names = names_of(report) if report is not None else None
    listed = shortened([names.of(m) if names is not None else m for m in awaited])
    took = duration_text(now_ms - since_ms)
    if view.state == NOT_READY:
        streams = view.consumer.streams if view.consumer else None
        detail = (streams.not_ready or "").removesuffix(".") if streams else ""
        sentence = f"For {took}, topics of its topology have been missing or had wrong numbers of partitions"
        sentence = f"For {took}, no member has had a task. {detail}" if detail else sentence
        yield Finding(FindingKind.REBALANCING, sentence, since_ms)
        return
    whom = f" and waits for {listed}" if awaited else ""
    yield Finding(FindingKind.REBALANCING, f"It has been rebalancing for {took}{whom}", since_ms)


def awaited_members(rebalance: Rebalance) -> list[str]:
    """Return the members that a rebalance in progress still awaits."""
    if rebalance.has_epochs:
        return [one.member_id for one in rebalance.progress if one.settled_after_ms is None]
    came = {joined.member_id for joined in rebalance.joined} | {gone.member_id for gone in rebalance.removed}
    if rebalance.generation_to is not None:
        return [rebalance.leader_id] if rebalance.leader_id is not None else []
    return [member_id for member_id in rebalance.waited_for if member_id not in came]


def _lag_findings(facts: GroupFacts, report: Report | None, now_ms: int) -> Iterator[Finding]:
    found = troubles(facts.lags, facts.ownership, now_ms)
    if found.stuck:
        worst, lag = _worst(found.stuck)
        stands = duration_text(now_ms - lag.stands_since_ms)
        owner = facts.ownership.holders[worst]
        named = owner if report is None else names_of(report).of(owner)
        keeps = "keeps its session"
        if _is_rebalance_unseen(facts.view):
            keeps = "has not left, unless a rebalance is under way, which the log does not show"
        yield Finding(
            FindingKind.STUCK,
            f"{_named(worst)} has had the same committed offset for {stands} while records arrive, "
            f"{_behind(lag)}; its owner {named} {keeps}{_more(found.stuck)}",
            lag.stands_since_ms,
        )
    if found.without_owner:
        worst, lag = _worst(found.without_owner)
        since_ms = max(facts.ownership.settled_ms or 0, lag.committed_ms)
        if facts.ownership.topics is None:
            records = sum(lag.records or 0 for lag in found.without_owner.values())
            sentence = f"It has no members, and {thousands(records)} records wait for it"
        else:
            sentence = f"No member holds {_named(worst)}, {_behind(lag)}{_more(found.without_owner)}"
        yield Finding(FindingKind.NO_OWNER, sentence, since_ms)
    if found.falling_behind:
        worst, lag = _worst(found.falling_behind)
        yield Finding(
            FindingKind.FALLING_BEHIND,
            f"{_named(worst)} has fallen behind within {duration_text(WINDOW_MS)} although the group "
            f"commits, {_behind(lag)}{_more(found.falling_behind)}",
        )


def _is_rebalance_unseen(view: object) -> bool:
    """Return True if a rebalance of this group leaves no record when it begins.

    The cluster's own coordinator logs a classic group's rebalance only at its assignment.
    """
    return isinstance(view, GroupSnapshot) and view.observed is True and isinstance(view.consumer, UnsetType)


def _worst(lags: Mapping[Partition, PartitionLag]) -> tuple[Partition, PartitionLag]:
    return max(lags.items(), key=lambda item: (item[1].records or 0, item[0]))


def _named(where: Partition) -> str:
    return f"{where[0]}-{where[1]}"


def _behind(lag: PartitionLag) -> str:
    """Return a text such as `48 210 records (12 min 5 s) behind`."""
    time = f" ({duration_text(lag.ms)})" if lag.ms is not None else ""
    return f"{thousands(lag.records or 0)} records{time} behind"


def _more(lags: Mapping[Partition, PartitionLag]) -> str:
    return f", and {count(len(lags) - 1, 'partition')} more" if len(lags) > 1 else ""


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
    whole = len(rebalances)
    # One client and one kind of cause, if they explain half of all rebalances, else one client, else one kind
    (kind, client), times = Counter((r.cause.kind, client_of(r)) for r in rebalances).most_common(1)[0]
    if times * 2 >= whole:
        return f": before {_of(times, whole)} {_SENTENCES[kind].format(client=client)}"
    client, times = Counter(map(client_of, rebalances)).most_common(1)[0]
    if times * 2 >= whole:
        kinds = Counter(r.cause.kind for r in rebalances if client_of(r) == client)
        causes = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common(3))
        return f": {client} caused {_of(times, whole)} ({causes})"
    kind, times = Counter(r.cause.kind for r in rebalances).most_common(1)[0]
    return f": before {_of(times, whole)} {_SENTENCES[kind].format(client='a member')}"


def _of(times: int, whole: int) -> str:
    return "each" if times == whole else f"{times} of them"
