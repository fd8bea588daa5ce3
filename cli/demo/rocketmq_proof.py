"""The end of RocketMQ's demo: reads everything back from the topics and checks every claim."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC
from pathlib import Path

from msgspec import Struct

from cli.demo import checks
from cli.demo.checks import Check
from cli.demo.load import consumed
from cli.demo.proof import Deed, DemoResult
from cli.demo.watch import read_all, read_responses
from clients.answers import decode_response
from connections.client_config import ClientConfig
from insight.why.clock import Clock
from insight.why.rocketmq.report import report
from insight.why.rocketmq.text import report_text
from records.history import CoordinatorStarted
from records.layout import TopicLayout
from records.pack import unpack
from records.rocketmq_history import is_expiry
from state.rocketmq.history import EntryType, HistoryEntry
from state.rocketmq.responses import NotifyConsumerIdsChanged


class Share(Struct, frozen=True):
    """The queues of each consumer at one time, by the consumer's name."""

    queues: Mapping[str, str]


class Trap(Struct, frozen=True):
    """The effect of two consumers with one client id: their connections, and the unread records over time."""

    connections: list[str]
    backlog_before: int
    backlog_after: int


class Observed(Struct, frozen=True):
    """Facts that the script observed and that are not on the topics. `trap` is None if it was not reached."""

    group_id: str
    acknowledged: Collection[str]
    consumed: list[Path]
    broadcast: list[Path]
    shares: list[Share]
    trap: Trap | None
    deeds: list[Deed]


def examine(client_config: ClientConfig, layout: TopicLayout, observed: Observed) -> DemoResult:
    """Read the topics and return the outcome of all checks."""
    history = checks.read_history(read_all(client_config, layout.events_topic))
    responses = read_responses(client_config, layout.responses_topic)
    dead_letters = read_all(client_config, layout.dead_letters_topic)
    answers = checks.read_answers(*responses)
    messages = [decode_response(encoded) for value in responses.by_query for encoded in unpack(value)]
    notifications = [m for m in messages if isinstance(m, NotifyConsumerIdsChanged)]
    counts = consumed(observed.consumed)
    events = history.of_rocketmq(observed.group_id)
    started = [e for e in history.entries if isinstance(e, CoordinatorStarted)]
    wanted = set(observed.acknowledged)
    found = [
        checks.all_consumed(wanted, counts),
        all_by_all(wanted, observed.broadcast),
        four_and_three(observed.shares),
        all_were_notified(events, notifications),
        silence_was_found(events),
        trap_was_named(events, observed.trap),
        why_names_the_trap(events, observed.trap),
        backlog_grew(observed.trap),
        checks.no_gaps(history),
        checks.history_told_once(history),
        checks.answered_one_way(answers),
        Check("no record was a dead letter", not dead_letters, f"{len(dead_letters)} dead letters"),
    ]
    return DemoResult(
        checks=found,
        history=[*started, *events],
        deeds=observed.deeds,
        counts={
            "records_produced": len(wanted),
            "records_consumed": len(counts),
            "records_consumed_again": counts.total() - len(counts),
            "requests_answered": len(answers.by_request),
            "notifications": len(notifications),
            "history_entries": len(events),
        },
    )


def all_by_all(wanted: set[str], files: Sequence[Path]) -> Check:
    """Every produced record reached each of these consumers."""
    missing = {path.stem: len(wanted - consumed([path]).keys()) for path in files}
    ok = bool(wanted) and not any(missing.values())
    detail = ", ".join(f"{name} missed {number}" for name, number in missing.items())
    return Check("every broadcasting consumer consumed every record", ok, detail)


def four_and_three(shares: Sequence[Share]) -> Check:
    """The first two consumers had 4 and 3 queues."""
    first = dict(shares[0].queues) if shares else {}
    ok = sorted(first.values()) == ["0-3", "4-6"]
    return Check("7 queues of 2 consumers were 4 and 3", ok, str(first))


def all_were_notified(
    events: Sequence[HistoryEntry], notifications: Sequence[NotifyConsumerIdsChanged]
) -> Check:
    """When the third consumer connected, all three connections were notified, including its own."""
    came = [e for e in events if e.type is EntryType.CONSUMER_CONNECTED and e.client_id == "consumer-3"]
    causes = {e.cause for e in came}
    clients = sorted({m.client_id for m in notifications if m.request in causes})
    ok = clients == ["consumer-1", "consumer-2", "consumer-3"]
    return Check("all three were notified of the third", ok, f"notified: {', '.join(clients) or 'none'}")


def silence_was_found(events: Sequence[HistoryEntry]) -> Check:
    """A scan removed the killed consumer, and that scan notified no client."""
    gone = [e for e in events if is_expiry(e)]
    causes = {e.cause for e in gone}
    notified = [e for e in events if e.type is EntryType.CONSUMERS_NOTIFIED and e.cause in causes]
    ok = [e.client_id for e in gone] == ["consumer-2"] and not notified
    detail = "; ".join(f"{e.client_id}: {e.reason}" for e in gone) or "no scan removed a client"
    return Check("a scan removed only the killed consumer-2, and notified no client", ok, detail)


def trap_was_named(events: Sequence[HistoryEntry], trap: Trap | None) -> Check:
    """One entry names the client id and both of its connections, and another marks the end."""
    named = [e for e in events if e.type is EntryType.DUPLICATE_CLIENT_ID]
    over = [e for e in events if e.type is EntryType.DUPLICATE_CLIENT_ID_OVER]
    ok = trap is not None and len(trap.connections) == 2 and bool(over)
    ok = ok and [e.client_id for e in named] == ["consumer-1"] * len(named)
    detail = f"{len(named)} entries, connections: {len(trap.connections) if trap else 0}, over: {len(over)}"
    return Check("the history names the client id that two consumers had", ok and bool(named), detail)


def why_names_the_trap(events: Sequence[HistoryEntry], trap: Trap | None) -> Check:
    """`group-coordinator why` begins the duplicate's entry with the client id and both connections."""
    text = report_text(report(events[0].group_id, events, events[-1].at_ms), Clock(UTC)) if events else ""
    heads = [line for line in text.splitlines() if line.startswith("#") and "DUPLICATE CLIENT ID" in line]
    named = [head for head in heads if trap and all(c in head for c in ("consumer-1", *trap.connections))]
    detail = named[0] if named else f"{len(heads)} changes have that heading"
    return Check("`why` names the duplicate client id and its connections first", bool(named), detail)


def backlog_grew(trap: Trap | None) -> Check:
    """The records of the queues without a reader stayed there."""
    ok = trap is not None and trap.backlog_after > trap.backlog_before
    detail = f"{trap.backlog_before} records, then {trap.backlog_after}" if trap else "not seen"
    return Check("meanwhile the queues without a reader filled", ok, detail)
