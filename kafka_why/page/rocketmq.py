"""The page of a RocketMQ group: its clients over time, as lanes, and its changes in words.

The clients rebalance by themselves. The history has when each client came and went, and which clients the
coordinator notified of a change. It has no queues, because each client computes its own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.page.rocketmq_cluster import PolledPage
from kafka_why.page.timeline import (
    AXIS_PX,
    BANDS_PX,
    GIVES,
    HOLDS,
    LANE_PX,
    LEAST_PERCENT,
    Band,
    LaneRow,
    Mark,
    TimelinePicture,
    TimeScale,
    end_ms,
    most_notable_lanes,
    picture_limits_ms,
    timeline,
)
from kafka_why.why.rocketmq.changes import report
from kafka_why.why.rocketmq.model import Change, Report, connections_by_client
from kafka_why.why.rocketmq.text import report_text
from kafka_why.why.state_timelines import StateTimeline
from kafka_why.wording import Clock, Names, count, duration_text, shortened

MAX_CHANGES = 100
"""Changes that are listed below the picture, the newest."""
LABEL_PERCENT = 6
"""A mark that is wider has its number of connections as a label."""
MAX_NOTIFICATIONS = 200
"""Maximum number of notifications shown in a lane: the newest."""


class ChangeLine(Struct, frozen=True, kw_only=True):
    """A change in one line."""

    number: int
    at_ms: int
    sentence: str  # the kind of change and the clients
    reason: str
    notified: str = msgspec.field(name="told")  # clients that the coordinator notified, or ""
    clients: int | None  # number of clients after the change; None if the history does not have them all
    is_trap: bool  # clients share an id, or have different subscriptions


class RocketMqPage(Struct, frozen=True, kw_only=True):
    """The data of a RocketMQ group's page."""

    group_id: str
    now_ms: int
    sentence: str
    findings: list[str]
    clients: int | None  # number of present clients; None if the history does not have them all
    since_ms: int  # when the clients' connections last changed
    topics: list[str] | None
    picture: TimelinePicture
    changes: list[ChangeLine]
    changes_number: int  # number of changes in the time range, also of those that `changes` omits
    text: str  # the report of `why`, with the same numbers of changes
    # What polls of the cluster show, or why they show nothing; None if it is not polled.
    polled: PolledPage | str | None = None


def rocketmq_page(
    group_id: str,
    entries: Sequence[HistoryEntry],
    limits_ms: tuple[int, int],
    now_ms: int,
    *,
    unfolded: bool = False,
    polled: PolledPage | str | None = None,
) -> RocketMqPage:
    """Return the page of a group with at least one entry, with the changes within `limits_ms`."""
    whole = report(group_id, entries, now_ms)
    since_limit = report(group_id, entries, now_ms, limits_ms[0])
    within = [change for change in since_limit.changes if change.at_ms <= limits_ms[1]]
    clients = len({consumer.client_id for consumer in whole.consumers})
    return RocketMqPage(
        group_id=group_id,
        now_ms=now_ms,
        sentence=_sentence(within, whole, clients),
        findings=[f"{symptom.reason}. To do: {symptom.to_do}" for symptom in whole.symptoms],
        clients=clients if whole.complete else None,
        since_ms=whole.consumers_since_ms,
        topics=whole.topics,
        picture=_timeline_picture(whole, within, limits_ms, now_ms, unfolded=unfolded),
        changes=[_change_line(change) for change in reversed(within[-MAX_CHANGES:])],
        changes_number=len(within),
        text=report_text(since_limit, Clock())[
            :
        ],  # a slice is a plain str. msgspec encodes no subclass of str
        polled=polled,
    )


def _sentence(within: Sequence[Change], whole: Report, clients: int) -> str:
    """Return a text such as `It has 3 clients. It changed 4 times in this time: 2 x client connected, ...`"""
    at_least = "" if whole.complete else "at least "
    present = f"It has {at_least}{count(clients, 'client')}" if clients or at_least else "It has no clients"
    if not within:
        return f"{present}. Nothing changed in this time."
    notifications = sum(change.notification is not None for change in within)
    most_common = Counter(change.kind for change in within).most_common(4)
    kinds = ", ".join(f"{number} x {kind}" for kind, number in most_common)
    notified = f"; all connections were notified {count(notifications, 'time')}"
    return f"{present}. It changed {count(len(within), 'time')} in this time: {kinds}{notified}."


def _change_line(change: Change) -> ChangeLine:
    return ChangeLine(
        number=change.number,
        at_ms=change.at_ms,
        sentence=_change_text(change),
        reason="; ".join(dict.fromkeys(concerned.reason for concerned in change.concerned[:5])),
        notified=change.notification or "",
        clients=len({c.client_id for c in change.consumers}) if change.complete else None,
        is_trap=(bool(change.traps) and not change.harmless) or any(change.differ.values()),
    )


def _change_text(change: Change) -> str:
    """Return a text such as `client left: worker-2`."""
    names = [one.client_id for one in change.traps] or [
        c.client_id for c in change.concerned if c.client_id is not None
    ]
    return f"{change.kind}: {shortened(list(dict.fromkeys(names)))}" if names else str(change.kind)


@dataclass(slots=True)
class _ClientLane(StateTimeline):
    """A client over time. Its spans count connections, in the field `partitions`."""

    departures: list[tuple[int, str]] = field(default_factory=list)  # times in ms, and sentences
    notified_ms: list[int] = field(default_factory=list)
    changes: int = 0  # the number of changes that concern the client

    @property
    def connections(self) -> int:
        """The number of connections at the end of the history. It is 0 if the client has left."""
        return (self.partitions or 0) if self.is_open else 0


def _lanes(changes: Iterable[Change]) -> list[_ClientLane]:
    """Return the lanes of all clients, in the order of their first connections."""
    lanes: dict[str, _ClientLane] = {}
    incarnation = ""
    for change in changes:
        if change.incarnation != incarnation:
            # A new incarnation: the connections of the previous one ended at a time that the history lacks.
            _set_connections(lanes, {}, change.at_ms)
            incarnation = change.incarnation
        connections = connections_by_client(change.consumers)
        connected_before = {client_id for client_id, lane in lanes.items() if lane.connections}
        _set_connections(lanes, connections, change.at_ms)
        for concerned in change.concerned:
            if concerned.client_id is not None and concerned.client_id in lanes:
                lanes[concerned.client_id].changes += 1
        for client_id in connected_before - connections.keys():
            lanes[client_id].departures.append((change.at_ms, _departure_text(change, client_id)))
        if change.notification is not None:
            for client_id in connections:
                lanes[client_id].notified_ms.append(change.at_ms)
    return list(lanes.values())


def _set_connections(lanes: dict[str, _ClientLane], connections: Mapping[str, int], at_ms: int) -> None:
    """Record each client's number of connections from this time on. Clients without a number have none."""
    for client_id in connections:
        lanes.setdefault(client_id, _ClientLane(client_id))
    for client_id, lane in lanes.items():
        number = connections.get(client_id, 0)
        if number != lane.connections:
            kind = HOLDS if number == 1 else GIVES  # several connections are drawn as `GIVES`
            lane.become(kind if number else None, at_ms, number)


def _departure_text(change: Change, client_id: str) -> str:
    reason = next((c.reason for c in change.concerned if c.client_id == client_id), None)
    return f"{client_id} left: {reason or change.kind}"


def _timeline_picture(
    whole: Report, within: Sequence[Change], limits_ms: tuple[int, int], now_ms: int, *, unfolded: bool
) -> TimelinePicture:
    scale = TimeScale(*picture_limits_ms(limits_ms, whole.from_ms))
    visible = [lane for lane in _lanes(whole.changes) if scale.shows(lane.spans, now_ms)]
    drawn = visible if unfolded else most_notable_lanes(visible, weight=lambda lane: lane.changes)
    empty = timeline(
        lanes=(),
        rebalances=(),
        removals=(),
        names=Names([]),
        clients={},
        limits_ms=(scale.from_ms, scale.to_ms),
        now_ms=now_ms,
    )
    return replace(
        empty,
        lanes=[
            _lane_row(lane, BANDS_PX + place * LANE_PX, scale, now_ms) for place, lane in enumerate(drawn)
        ],
        bands=[
            Band(_point(scale, change.at_ms), LEAST_PERCENT, change.number, change.at_ms, _band_text(change))
            for change in within
        ],
        folded=len(visible) - len(drawn),
        height=BANDS_PX + LANE_PX * len(drawn) + AXIS_PX,
    )


def _band_text(change: Change) -> str:
    notified = f"; notified: {change.notification}" if change.notification else "; no client was notified"
    return f"#{change.number} {_change_text(change)}{notified}"


def _point(scale: TimeScale, at_ms: int) -> float:
    """Return the position of a moment. A mark at the end of the picture is moved into it."""
    return min(scale.x(at_ms), 100 - LEAST_PERCENT)


def _lane_row(lane: _ClientLane, y: int, scale: TimeScale, now_ms: int) -> LaneRow:
    return LaneRow(
        name=lane.member_id,
        member_ids=[lane.member_id],
        y=y,
        marks=list(_marks(lane, scale, now_ms)),
        gone=[(_point(scale, at_ms), text) for at_ms, text in lane.departures if scale.contains(at_ms)],
        notified=list(_notifications(lane, scale)),
    )


def _marks(lane: _ClientLane, scale: TimeScale, now_ms: int) -> Iterator[Mark]:
    """Yield the marks of a lane, from left to right without overlaps."""
    end = 0.0  # of the previous mark
    for span in lane.spans:
        place = scale.place(span.from_ms, end_ms(span, now_ms))
        if place is None:
            continue
        x = max(place[0], end)  # the mark begins where the previous one ends, if that is later
        width = round(place[0] + place[1] - x, 3)
        if width <= 0 or x >= 100:
            continue  # the previous mark covers it
        end = round(x + width, 3)
        lasted = duration_text(end_ms(span, now_ms) - span.from_ms)
        if span.what == HOLDS:
            yield Mark(x, width, HOLDS, f"{lane.member_id} connected, holds queues by its own view, {lasted}")
        else:
            connections = f"{span.partitions} connections at once"
            label = f"x {span.partitions}" if width > LABEL_PERCENT else ""
            yield Mark(x, width, GIVES, f"{lane.member_id} is on {connections}, {lasted}", label)


def _notifications(lane: _ClientLane, scale: TimeScale) -> Iterator[tuple[float, str]]:
    """Yield the positions and texts of a client's notifications, one for each position."""
    within = [at_ms for at_ms in lane.notified_ms if scale.contains(at_ms)][-MAX_NOTIFICATIONS:]
    for x in dict.fromkeys(_point(scale, at_ms) for at_ms in within):
        yield x, f"{lane.member_id} was notified that the clients have changed"
