"""The demo's outcome as text and as JSON."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from cli.demo.proof import DemoResult
from records.history import CoordinatorStarted
from state.kafka.history import HistoryEntry
from state.rocketmq.history import HistoryEntry as RocketMqHistoryEntry

# The part of a member id after the client id. The text leaves it out, because readers know the client ids.
_UUID = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The part of a connection's name after the client id.
_UUID_OF_CONNECTION = re.compile(r"/([0-9a-f]{4})[0-9a-f]{4}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def as_json(outcome: DemoResult, seconds: float) -> dict[str, Any]:
    """Return one JSON object: `ok`, `checks`, `timeline`, `counts`, `seconds`."""
    return {
        "ok": outcome.ok,
        "checks": msgspec.to_builtins(outcome.checks),
        "timeline": [entry for _, entry in sorted(_entries(outcome), key=lambda item: item[0])],
        "counts": outcome.counts,
        "seconds": round(seconds, 1),
    }


def timeline_lines(outcome: DemoResult) -> Iterator[str]:
    """Yield a line for each event in the order of time, with its time since the first in seconds."""
    entries = sorted(_entries(outcome), key=lambda item: item[0])
    start_ms = entries[0][0][0] if entries else 0
    for (at_ms, _, _), entry in entries:
        yield f"{(at_ms - start_ms) / 1000:8.1f} s  {_line(entry)}"


def check_lines(outcome: DemoResult) -> Iterator[str]:
    """Yield a line for each check, with its finding."""
    for check in outcome.checks:
        yield f"  {'ok  ' if check.ok else 'FAIL'}  {check.name} ({check.detail})"


_Key = tuple[int, int, int]


def _entries(outcome: DemoResult) -> Iterator[tuple[_Key, dict[str, Any]]]:
    """Yield each event with its sort key. At equal times the demo's actions come first."""
    for deed in outcome.deeds:
        yield (deed.at_ms, 0, 0), {"at_ms": deed.at_ms, "who": "demo", "what": deed.what}
    for entry in outcome.history:
        if isinstance(entry, CoordinatorStarted):
            yield (entry.at_ms, 1, 0), {"at_ms": entry.at_ms, "who": "coordinator", "what": "it starts"}
        else:
            yield (entry.at_ms, 2, entry.seq), _group_entry(entry)


def _group_entry(event: HistoryEntry | RocketMqHistoryEntry) -> dict[str, Any]:
    if isinstance(event, RocketMqHistoryEntry):
        return {
            "at_ms": event.at_ms,
            "who": "group",
            "group_id": event.group_id,
            "seq": event.seq,
            "type": event.type,
            "client_id": event.client_id,
            "reason": event.reason,
            "cause": event.cause,
        }
    return {
        "at_ms": event.at_ms,
        "who": "group",
        "seq": event.seq,
        "generation": event.generation,
        "type": event.type,
        "from_state": event.from_state,
        "to_state": event.to_state,
        "member_id": event.member_id,
        "reason": event.reason,
        "rule": event.rule,
        "cause": event.cause,
    }


def _line(entry: dict[str, Any]) -> str:
    if entry["who"] != "group":
        return f"*** {entry['who']}: {entry['what']}"
    if "generation" not in entry:
        client = f" {entry['client_id']}" if entry["client_id"] else ""
        text = f"{entry['type']}{client}: {entry['reason']}"
        return "    " + _UUID_OF_CONNECTION.sub(r"/\1", text)
    member = f" {entry['member_id']}" if entry["member_id"] else ""
    text = f"{entry['type']}{member}: {entry['reason']} [{entry['rule']}]"
    return f"    generation {entry['generation']:<2} {_UUID.sub('', text)}"
