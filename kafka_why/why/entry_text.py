"""Formats an entry of a history as a line of text."""

import time

from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import BY_EPOCHS
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry


def entry_line(event: AnyHistoryEntry) -> str:
    """Return one history entry as a line of text."""
    if isinstance(event, RocketMqHistoryEntry):
        client = f" [{event.client_id}]" if event.client_id else ""
        return f"{clock(event.at_ms)}  {event.group_id}  {event.type}{client}: {event.reason}"
    change = f" ({event.from_state} -> {event.to_state})" if event.from_state != event.to_state else ""
    member = f" [{event.member_id}]" if event.member_id else ""
    generation = "epoch" if event.group_type in BY_EPOCHS else "generation"
    return (
        f"{clock(event.at_ms)}  {event.group_id}  {generation} {event.generation}  "
        f"{event.type}{change}{member}: {event.reason}"
    )


def clock(at_ms: float) -> str:
    """Return the local time of day, to the millisecond."""
    whole_s, ms = divmod(int(at_ms), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(whole_s))}.{ms:03}"
