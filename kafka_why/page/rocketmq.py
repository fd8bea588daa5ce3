"""One group of RocketMQ's: its clients over time, as lanes, and its changes in words.

The clients rebalance by themselves. The history has when each came and went, and whom the coordinator told
of a change. It has no queues: a client that is there holds those of its own view.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.page.timeline import (
    AXIS_PX,
    BANDS_PX,
    GIVES,
    HOLDS,
    LANE_PX,
    LEAST_PERCENT,
    MAX_LANES,
    Band,
    LaneRow,
    Mark,
    Timeline,
    timeline,
)
from kafka_why.why.rocketmq.changes import report
from kafka_why.why.rocketmq.model import Change, Report, Trap
from kafka_why.why.rocketmq.text import report_text
from kafka_why.why.wording import Clock, Names, count, duration_text, shortened

MAX_CHANGES = 100
"""Changes that are listed below the picture, the newest."""
LABEL_PERCENT = 6
"""A mark that is wider has its number of connections as a label."""
MAX_TOLD = 200
"""Times at which a lane shows that its client was told, the newest."""


class ChangeLine(Struct, frozen=True, kw_only=True):
    """A change in one line. `told` says whom the coordinator notified, "" if nobody."""

    number: int
    at_ms: int
    sentence: str
    reason: str
    told: str
    clients: int | None
    is_trap: bool


class RocketMqPage(Struct, frozen=True, kw_only=True):
    """A group of RocketMQ's. `clients` is None if the history does not have them all. `text` is the report of
    `why`, whose numbers of changes are those of the lines.
    """

    group_id: str
    now_ms: int
    sentence: str
    findings: list[str]
    clients: int | None
    since_ms: int
    topics: list[str] | None
    picture: Timeline
    changes: list[ChangeLine]
    changes_number: int
    text: str


def rocketmq_page(
    group_id: str,
    entries: Sequence[HistoryEntry],
    limits_ms: tuple[int, int],
    now_ms: int,
    *,
    unfolded: bool = False,
) -> RocketMqPage:
    """Return the page of a group with at least one entry. The changes are those between the limits."""
    whole = report(group_id, entries, now_ms)
    shown = report(group_id, entries, now_ms, limits_ms[0])
    within = [change for change in shown.changes if change.at_ms <= limits_ms[1]]
    clients = len({consumer.client_id for consumer in whole.consumers})
    return RocketMqPage(
        group_id=group_id,
        now_ms=now_ms,
        sentence=_sentence(within, whole, clients),
        findings=[_trap_text(trap.client_id, trap.connections) for trap in _hurting(whole)],
        clients=clients if whole.complete else None,
        since_ms=whole.consumers_since_ms,
        topics=whole.topics,
        picture=_picture(whole, within, limits_ms, now_ms, unfolded=unfolded),
        changes=[_line(change) for change in reversed(within[-MAX_CHANGES:])],
        changes_number=len(within),
        text=report_text(shown, Clock()),
    )


def _hurting(found: Report) -> list[Trap]:
    return [trap for trap in found.traps if trap.to_ms is None and not trap.harmless]


def _trap_text(client_id: str, connections: Sequence[str]) -> str:
    where = shortened(connections) or "several connections"
    return (
        f"The client id {client_id} is on {where}, so queues may have no consumer: "
        "stop one of them, or give it a client id of its own"
    )


def _sentence(within: Sequence[Change], whole: Report, clients: int) -> str:
    """`It has 3 clients. They changed 4 times in this time: 2 x client connected, 1 x client left.`"""
    least = "" if whole.complete else "at least "
    there = f"It has {least}{count(clients, 'client')}" if clients or least else "It has no clients"
    if not within:
        return f"{there}. Nothing changed in this time."
    kinds: dict[str, int] = {}
    for change in within:
        kinds[change.kind] = kinds.get(change.kind, 0) + 1
    told = sum(change.notification is not None for change in within)
    most = sorted(kinds.items(), key=lambda item: -item[1])
    causes = ", ".join(f"{number} x {kind}" for kind, number in most[:4])
    notified = f"; all connections were told {count(told, 'time')}"
    return f"{there}. It changed {count(len(within), 'time')} in this time: {causes}{notified}."


def _line(change: Change) -> ChangeLine:
    return ChangeLine(
        number=change.number,
        at_ms=change.at_ms,
        sentence=_what(change),
        reason="; ".join(dict.fromkeys(concerned.reason for concerned in change.concerned[:5])),
        told=change.notification or "",
        clients=len({c.client_id for c in change.consumers}) if change.complete else None,
        is_trap=bool(change.traps) and not change.harmless,
    )


def _what(change: Change) -> str:
    """`client left: worker-2`."""
    names = list(change.traps) or [c.client_id for c in change.concerned if c.client_id is not None]
    return f"{change.kind}: {shortened(list(dict.fromkeys(names)))}" if names else str(change.kind)


class _Span(Struct, frozen=True):
    """A client is there, on one connection, or on several at once."""

    from_ms: int
    to_ms: int | None
    connections: int


class _Lane(Struct):
    """A client over time. `since_ms` is None while it is not there."""

    client_id: str
    spans: list[_Span] = []
    gone: list[tuple[int, str]] = []
    told: list[int] = []
    changes: int = 0
    since_ms: int | None = None
    connections: int = 0

    def become(self, connections: int, at_ms: int) -> None:
        """It is on so many connections from now on."""
        if connections == self.connections:
            return
        self.close(at_ms)
        self.connections, self.since_ms = connections, at_ms if connections else None

    def close(self, to_ms: int | None) -> None:
        if self.since_ms is not None and (to_ms is None or to_ms > self.since_ms):
            self.spans.append(_Span(self.since_ms, to_ms, self.connections))


def _lanes(changes: Iterable[Change]) -> list[_Lane]:
    """The lanes of all clients, in the order in which they came."""
    lanes: dict[str, _Lane] = {}
    incarnation = ""
    for change in changes:
        if change.incarnation != incarnation:
            # Another life of the group: no connection outlives it, and its end is not in the history.
            _set(lanes, {}, change.at_ms)
            incarnation = change.incarnation
        there: dict[str, int] = {}
        for consumer in change.consumers:
            there[consumer.client_id] = there.get(consumer.client_id, 0) + 1
        before = {client_id for client_id, lane in lanes.items() if lane.connections}
        _set(lanes, there, change.at_ms)
        for concerned in change.concerned:
            if concerned.client_id is not None and concerned.client_id in lanes:
                lanes[concerned.client_id].changes += 1
        for client_id in before - there.keys():
            lanes[client_id].gone.append((change.at_ms, _reason(change, client_id)))
        if change.notification is not None:
            for client_id in there:
                lanes[client_id].told.append(change.at_ms)
    for lane in lanes.values():
        lane.close(None)
    return list(lanes.values())


def _set(lanes: dict[str, _Lane], there: Mapping[str, int], at_ms: int) -> None:
    for client_id in there:
        if client_id not in lanes:
            lanes[client_id] = _Lane(client_id)
    for client_id, lane in lanes.items():
        lane.become(there.get(client_id, 0), at_ms)


def _reason(change: Change, client_id: str) -> str:
    found = next((c.reason for c in change.concerned if c.client_id == client_id), None)
    return f"{client_id} went: {found or change.kind}"


def _picture(
    whole: Report, within: Sequence[Change], limits_ms: tuple[int, int], now_ms: int, *, unfolded: bool
) -> Timeline:
    from_ms, to_ms = limits_ms
    shown_ms = (
        max(from_ms, whole.from_ms - (to_ms - whole.from_ms) // 50) if whole.from_ms < to_ms else from_ms
    )
    scale = _Scale(shown_ms, max(to_ms, shown_ms + 1))
    seen = [lane for lane in _lanes(whole.changes) if scale.shows(lane, now_ms)]
    chosen = seen if unfolded or len(seen) <= MAX_LANES else _chosen(seen)
    empty = timeline((), (), (), Names([]), {}, (scale.from_ms, scale.to_ms), now_ms)
    return replace(
        empty,
        lanes=[_row(lane, BANDS_PX + place * LANE_PX, scale, now_ms) for place, lane in enumerate(chosen)],
        bands=[
            Band(scale.x(change.at_ms), LEAST_PERCENT, change.number, change.at_ms, _band_text(change))
            for change in within
        ],
        folded=len(seen) - len(chosen),
        height=BANDS_PX + LANE_PX * len(chosen) + AXIS_PX,
    )


def _chosen(lanes: Sequence[_Lane]) -> list[_Lane]:
    """MAX_LANES of them in their order, those that changed most."""
    ranked = sorted(range(len(lanes)), key=lambda i: (-lanes[i].changes, i))
    return [lanes[i] for i in sorted(ranked[:MAX_LANES])]


def _band_text(change: Change) -> str:
    told = f"; told: {change.notification}" if change.notification else "; nobody was told"
    return f"#{change.number} {_what(change)}{told}"


class _Scale(Struct, frozen=True):
    """Times as per cent of the width."""

    from_ms: int
    to_ms: int

    def x(self, at_ms: int) -> float:
        return min(round((at_ms - self.from_ms) * 100 / (self.to_ms - self.from_ms), 3), 100 - LEAST_PERCENT)

    def has(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms <= self.to_ms

    def place(self, span: _Span, now_ms: int) -> tuple[float, float] | None:
        """The place and the width of what is within the limits, None if nothing is."""
        from_ms = max(span.from_ms, self.from_ms)
        to_ms = min(now_ms if span.to_ms is None else span.to_ms, self.to_ms)
        if from_ms >= to_ms:
            return None
        x = self.x(from_ms)
        end = (to_ms - self.from_ms) * 100 / (self.to_ms - self.from_ms)
        return x, max(round(end - x, 3), LEAST_PERCENT)

    def shows(self, lane: _Lane, now_ms: int) -> bool:
        return any(self.place(span, now_ms) for span in lane.spans)


def _row(lane: _Lane, y: int, scale: _Scale, now_ms: int) -> LaneRow:
    return LaneRow(
        name=lane.client_id,
        member_ids=[lane.client_id],
        y=y,
        marks=list(_marks(lane, scale, now_ms)),
        gone=[(scale.x(at_ms), text) for at_ms, text in lane.gone if scale.has(at_ms)],
        told=list(_told(lane, scale)),
    )


def _marks(lane: _Lane, scale: _Scale, now_ms: int) -> Iterator[Mark]:
    end = 0.0
    for span in lane.spans:
        place = scale.place(span, now_ms)
        if place is None:
            continue
        x = max(place[0], end)
        width = round(place[0] + place[1] - x, 3)
        if width <= 0 or x >= 100:
            continue  # the one before it has its place
        end = round(x + width, 3)
        lasted = duration_text((now_ms if span.to_ms is None else span.to_ms) - span.from_ms)
        if span.connections == 1:
            yield Mark(x, width, HOLDS, f"{lane.client_id} is there, holds queues by its own view, {lasted}")
        else:
            on = f"{span.connections} connections at once"
            label = f"x {span.connections}" if width > LABEL_PERCENT else ""
            yield Mark(x, width, GIVES, f"{lane.client_id} is on {on}, {lasted}", label)


def _told(lane: _Lane, scale: _Scale) -> Iterator[tuple[float, str]]:
    seen: set[float] = set()
    for at_ms in [at_ms for at_ms in lane.told if scale.has(at_ms)][-MAX_TOLD:]:
        x = scale.x(at_ms)
        if x not in seen:
            seen.add(x)
            yield x, f"{lane.client_id} was told that the clients have changed"
