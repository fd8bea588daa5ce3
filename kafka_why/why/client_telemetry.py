"""Reads clients' metrics (KIP-714), which explain why members left, were removed, or were slow to join.

A client reports how many whole seconds ago it last polled. A push after the moment when the member left shows
the last poll before that moment, unless the client has polled after the moment. A push before the moment does
not show it, because the client may have polled after the push. The exception is a client that leaves because
its poll timeout has expired.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka import TopicPartition
from msgspec.structs import replace

from kafka_why.contract.codec import decode_request, number_in_pack, record_of, unpack
from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, JoinGroup
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.contract.telemetry import (
    LAST_HEARTBEAT,
    LAST_POLL,
    POLL_IDLE_RATIO,
    MemberTelemetry,
    decode_telemetry,
    is_of_group,
)
from kafka_why.grouping import grouped
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader
from kafka_why.why.model import CauseKind, ClientMetrics, ClientRole, Rebalance
from kafka_why.why.segments import JOINS, REMOVALS
from kafka_why.wording import Lines, Names, duration_text

SLOWEST = 3
"""The maximum number of awaited members that a report explains. It explains the slowest members."""
LEAST_WAIT_MS = 1_000
"""A member that joined within this time does not count as awaited."""

# Causes whose members are no longer in the group.
_GONE = (
    CauseKind.MEMBER_LEFT,
    CauseKind.SESSION_TIMEOUT,
    CauseKind.SYNC_TIMEOUT,
    CauseKind.REBALANCE_TIMEOUT,
    CauseKind.JOIN_TIMEOUT,
)
# In the reason with which Java's consumers leave (AbstractCoordinator.HeartbeatThread).
_POLL_TIMEOUT = "poll timeout has expired"
_LEFT = "left the group"  # in the coordinator's reason if a client left by itself
_SECOND_MS = 1_000  # clients report whole seconds


class Push(NamedTuple):
    """A push of a client's metrics, which arrived at `at_ms`."""

    at_ms: int
    metrics: Mapping[str, float]  # names are in `kafka_why.contract.telemetry`

    def time_of(self, metric: str) -> int | None:
        """Return the latest possible time of the event whose age in seconds is `metric`.

        The result is None if the push lacks the metric.
        """
        ago_s = self.metrics.get(metric)
        return None if ago_s is None else self.at_ms - int(ago_s * _SECOND_MS)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The pushes of a group's members in order of time."""

    pushes: Mapping[MemberId, Sequence[Push]] = field(default_factory=dict)
    # The max.poll.interval.ms of removed members, where known.
    poll_intervals_ms: Mapping[MemberId, int] = field(default_factory=dict)


NO_TELEMETRY = Telemetry()


class _Moment(NamedTuple):
    """A moment that a client's metrics may explain."""

    about: ClientRole
    member_id: MemberId
    at_ms: int
    leaves: bool = False  # True if the client itself left the group
    reason: str | None = None  # the client's reason to leave

    @property
    def is_of_poll_timeout(self) -> bool:
        return self.reason is not None and _POLL_TIMEOUT in self.reason

    def is_explained_by(self, metrics: ClientMetrics) -> bool:
        # A client leaves for many reasons. Its metrics explain that only if it exceeded its poll interval.
        return not self.leaves or self.is_of_poll_timeout or _exceeds_interval(metrics)


def _exceeds_interval(metrics: ClientMetrics) -> bool:
    """Return True if the client's last poll was longer before the moment than max.poll.interval.ms."""
    poll_ms, interval_ms = metrics.last_poll_before_ms, metrics.max_poll_interval_ms
    # Clients round down to whole seconds, so up to a second may be missing.
    return poll_ms is not None and interval_ms is not None and poll_ms >= interval_ms - _SECOND_MS


def with_client_metrics(found: Sequence[Rebalance], telemetry: Telemetry) -> list[Rebalance]:
    """Return the rebalances with their clients' metrics."""
    if not telemetry.pushes:
        return list(found)
    return [replace(r, clients_said=list(_client_metrics(r, telemetry))) for r in found]


def _client_metrics(r: Rebalance, telemetry: Telemetry) -> Iterator[ClientMetrics]:
    """Yield the metrics that explain moments of a rebalance."""
    for moment in _moments(r):
        metrics = _metrics_about(moment, telemetry)
        if metrics is not None and moment.is_explained_by(metrics):
            yield metrics


def _moments(r: Rebalance) -> Iterator[_Moment]:
    """Yield the moments when members left or were removed. For each of the slowest awaited members, yield the
    beginning of the rebalance.
    """
    causing = r.cause.member_ids if r.cause.kind in _GONE else []
    gone = set(causing)
    leaves = r.cause.kind is CauseKind.MEMBER_LEFT
    for member_id in causing:
        yield _Moment(ClientRole.CAUSE, member_id, r.began_ms, leaves, r.cause.client_reason)
    for removed in r.removed:
        if removed.member_id not in gone:
            gone.add(removed.member_id)
            at_ms = r.began_ms + removed.after_ms
            leaves = _LEFT in removed.reason
            yield _Moment(ClientRole.REMOVED, removed.member_id, at_ms, leaves, removed.client_reason)
    joined_after_ms: dict[MemberId, float] = {joined.member_id: joined.after_ms for joined in r.joined}
    # A member that never joined is the slowest.
    wait_ms = {m: joined_after_ms.get(m, float("inf")) for m in r.waited_for if m not in gone}
    slow = [member_id for member_id, ms in wait_ms.items() if ms >= LEAST_WAIT_MS]
    for member_id in sorted(slow, key=lambda m: wait_ms[m], reverse=True)[:SLOWEST]:
        yield _Moment(ClientRole.AWAITED, member_id, r.began_ms)


def _metrics_about(moment: _Moment, telemetry: Telemetry) -> ClientMetrics | None:
    """Return metrics with the client's last poll before the moment, if pushes show it.

    Otherwise return metrics from the last push before the moment, or None if there is none, or if the moment
    is the beginning of a rebalance that awaited the member.
    """
    pushes = telemetry.pushes.get(moment.member_id, ())
    interval_ms = telemetry.poll_intervals_ms.get(moment.member_id)
    last_before = next((push for push in reversed(pushes) if push.at_ms <= moment.at_ms), None)
    pushes_after = (push for push in pushes if push.at_ms > moment.at_ms)
    showing = [push for push in pushes_after if _shows(push, LAST_POLL, moment)]
    if showing:
        return _certain_metrics(moment, showing, interval_ms)
    if last_before is None or moment.about is ClientRole.AWAITED:
        return None  # earlier metrics do not explain why a member was slow
    # The client has not polled for the interval, so a push within it shows its last poll.
    is_within = interval_ms is not None and last_before.at_ms >= moment.at_ms - interval_ms
    if moment.is_of_poll_timeout and is_within:
        return _certain_metrics(moment, [last_before], interval_ms)
    return ClientMetrics(
        about=moment.about,
        member_id=moment.member_id,
        said_before_ms=moment.at_ms - last_before.at_ms,
        last_poll_before_ms=_ms_before(moment, last_before.time_of(LAST_POLL)),
        last_heartbeat_before_ms=_ms_before(moment, last_before.time_of(LAST_HEARTBEAT)),
        poll_idle_ratio=last_before.metrics.get(POLL_IDLE_RATIO),
        max_poll_interval_ms=interval_ms,
        is_certain=False,
    )


def _certain_metrics(moment: _Moment, pushes: Sequence[Push], interval_ms: int | None) -> ClientMetrics:
    """Return metrics with the client's last poll before the moment, which each of `pushes` shows."""
    push = pushes[0]
    # Each push arrives with a delay, so the time that it shows is too late: the earliest is the most precise.
    polled_at_ms = [at_ms for push in pushes if (at_ms := push.time_of(LAST_POLL)) is not None]
    # Clients round ages down to whole seconds, so half a second is added.
    poll_before_ms = moment.at_ms - min(polled_at_ms) + _SECOND_MS // 2 if polled_at_ms else None
    if moment.is_of_poll_timeout and poll_before_ms is not None and interval_ms is not None:
        poll_before_ms = max(poll_before_ms, interval_ms)
    heartbeat_ms = None
    if push.at_ms > moment.at_ms and _shows(push, LAST_HEARTBEAT, moment):
        heartbeat_ms = push.time_of(LAST_HEARTBEAT)
    return ClientMetrics(
        about=moment.about,
        member_id=moment.member_id,
        said_before_ms=moment.at_ms - push.at_ms,  # negative if the push came after the moment
        last_poll_before_ms=poll_before_ms,
        last_heartbeat_before_ms=_ms_before(moment, heartbeat_ms),
        poll_idle_ratio=push.metrics.get(POLL_IDLE_RATIO),
        max_poll_interval_ms=interval_ms,
        is_certain=poll_before_ms is not None,
    )


def _shows(push: Push, metric: str, moment: _Moment) -> bool:
    """Return True if the push shows the last event of `metric`, such as a poll, to be before the moment."""
    at_ms = push.time_of(metric)
    return at_ms is not None and at_ms <= moment.at_ms


def _ms_before(moment: _Moment, at_ms: int | None) -> int | None:
    """Return the time from `at_ms` to the moment, or None if `at_ms` is unknown."""
    return None if at_ms is None else max(moment.at_ms - at_ms, 0)


# The moment, as a clause.
_WHEN = {
    ClientRole.CAUSE: "before",
    ClientRole.REMOVED: "before it was removed",
    ClientRole.AWAITED: "before the rebalance began",
}


def client_lines(r: Rebalance, names: Names, *roles: ClientRole) -> Lines:
    """Yield the lines about clients' metrics in a rebalance, for members with `roles`."""
    for metrics in r.clients_said:
        if metrics.about in roles:
            is_named = metrics.about is not ClientRole.CAUSE or len(r.cause.member_ids) > 1
            name = f"{names.of(metrics.member_id)}: " if is_named else ""
            sentence = _certain_sentence(metrics) if metrics.is_certain else _earlier_sentence(metrics)
            yield "client", f"{name}{sentence}{_interval_text(metrics)}"


def _certain_sentence(metrics: ClientMetrics) -> str:
    """Return a sentence about the client's last poll before the moment."""
    when = _WHEN[metrics.about]
    assert metrics.last_poll_before_ms is not None, "the last poll is certain"
    text = f"its last poll was {_seconds_text(metrics.last_poll_before_ms)} {when}"
    if metrics.last_heartbeat_before_ms is not None:
        text += f", its last heartbeat {_seconds_text(metrics.last_heartbeat_before_ms)} {when}"
    return text


def _earlier_sentence(metrics: ClientMetrics) -> str:
    """Return a sentence about metrics from before the moment. The client may have polled since their push."""
    parts = []
    if metrics.last_poll_before_ms is not None:
        parts.append(
            f"its last poll was {_seconds_text(metrics.last_poll_before_ms - metrics.said_before_ms)} ago"
        )
    if metrics.last_heartbeat_before_ms is not None:
        ago = _seconds_text(metrics.last_heartbeat_before_ms - metrics.said_before_ms)
        parts.append(f"its last heartbeat {'' if parts else 'was '}{ago} ago")
    if metrics.last_poll_before_ms is None and metrics.poll_idle_ratio is not None:
        parts.append(f"{metrics.poll_idle_ratio:.0%} of its time was in poll()")
    listed = ", ".join(parts) or "nothing about its polls"
    return f"{_seconds_text(metrics.said_before_ms)} {_WHEN[metrics.about]} it reported: {listed}"


def _interval_text(metrics: ClientMetrics) -> str:
    """Return a clause with max.poll.interval.ms, or "" if the client did not exceed it."""
    if metrics.max_poll_interval_ms is None or not _exceeds_interval(metrics):
        return ""
    return f"; max.poll.interval.ms is {_seconds_text(metrics.max_poll_interval_ms)}"


def _seconds_text(ms: int) -> str:
    # Clients report no fractions.
    seconds = max(ms, 0) // 1_000
    return f"{seconds} s" if seconds < 120 else duration_text(seconds * 1_000)


LOOKBACK_MS = 3_600_000
"""The longest interval between pushes: a member's last push may be this much older than an entry."""
MAX_MEMBERS = 20
"""The maximum number of removed members whose joins are read. The last removed members are read."""


def read_telemetry(
    reader: TopicReader, layout: TopicLayout, group_id: str, entries: Sequence[AnyHistoryEntry]
) -> Telemetry:
    """Return the metrics of a group's members that were pushed since LOOKBACK_MS before the first entry.

    Raises KafkaError.
    """
    partition = TopicPartition(layout.telemetry_topic, partition_of(group_id, layout.request_partitions))
    if not entries or partition not in reader.partitions_of(partition.topic):
        return NO_TELEMETRY  # observers and coordinators of earlier versions have no such topic
    pushes = grouped(_read_pushes(reader, partition, group_id, entries[0].at_ms - LOOKBACK_MS))
    joins = _joins_of_removed(entries, pushes)
    return Telemetry(pushes, _poll_intervals_ms(reader, layout.requests_topic, joins))


def _read_pushes(
    reader: TopicReader, partition: TopicPartition, group_id: str, since_ms: int
) -> Iterator[tuple[MemberId, Push]]:
    """Yield the pushes of the group's members since `since_ms`."""
    first = reader.offsets_at([partition], since_ms)[partition]
    if first is None:  # no record is that new
        return
    ends = reader.ends([partition])
    reader.start(at={partition: first})
    for record in reader.read_to(ends):
        if record.value is not None and is_of_group(record.key, group_id):
            push = decode_telemetry(record.value, MemberTelemetry)
            if push is not None:
                yield push.member_id, Push(record.timestamp, push.metrics)


def _joins_of_removed(
    entries: Sequence[AnyHistoryEntry], pushes: Mapping[MemberId, object]
) -> dict[MemberId, str]:
    """Return the id of the last join request of each removed member that pushed metrics."""
    last_joins: dict[MemberId, str] = {}
    joins_of_removed: dict[MemberId, str] = {}
    for entry in entries:
        member_id = entry.member_id if isinstance(entry, HistoryEntry) else None
        if member_id is None or member_id not in pushes:
            continue
        if entry.type in JOINS:
            last_joins[member_id] = entry.cause
        elif entry.type in REMOVALS and member_id in last_joins:
            joins_of_removed[member_id] = last_joins[member_id]
    return dict(list(joins_of_removed.items())[-MAX_MEMBERS:])


def _poll_intervals_ms(
    reader: TopicReader, requests_topic: str, joins: Mapping[MemberId, str]
) -> dict[MemberId, int]:
    """Return each member's max.poll.interval.ms. `joins` has the id of its last join request."""
    intervals_ms: dict[MemberId, int] = {}
    for member_id, request_id in joins.items():
        topic, number, offset = record_of(request_id)
        if topic != requests_topic:
            continue  # the coordinator had a different requests topic at that time
        request = _request(reader, TopicPartition(topic, number), offset, number_in_pack(request_id))
        if isinstance(request, JoinGroup | ConsumerGroupHeartbeat):
            # Kafka's clients send it as the rebalance timeout.
            intervals_ms[member_id] = request.rebalance_timeout_ms
    return intervals_ms


def _request(reader: TopicReader, partition: TopicPartition, offset: int, number: int) -> object:
    """Return request `number` of the record at `offset`, or None if the topic no longer has the record.

    A record can be a pack of several requests.
    """
    if not reader.beginnings([partition])[partition] <= offset < reader.ends([partition])[partition]:
        return None
    reader.start(at={partition: offset})
    (record,) = reader.read_to({partition: offset + 1})
    return decode_request(unpack(record.value)[number])
