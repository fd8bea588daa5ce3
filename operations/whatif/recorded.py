"""A group's log, from a recording."""

from collections.abc import Sequence

from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.why.wording import Clock
from operations.replay.recording import ClockLine, Recording
from operations.replay.replay import Replay
from operations.replay.starts import starts_of
from operations.replay.topic_contents import TopicContents
from operations.whatif.run import GroupLog, WhatIfError
from state.inputs import Received
from state.timeline import Row


def log_of(recording: Recording, group_id: str) -> GroupLog:
    """Return the group's requests from the one that created it on. Raises WhatIfError.

    Requests that the coordinator refused unread are left out.
    """
    if any(state.group_id == group_id for state in recording.states()):
        raise WhatIfError(
            f"the recording begins while group {group_id} already exists; what-if needs the log from the "
            "group's first request on, because it finds the clients in it"
        )
    starts = starts_of(recording, TopicContents.of(recording.outputs()))
    start = starts.get(group_id)
    if start is not None and start.is_cut and start.request is None:
        raise WhatIfError(
            f"the beginning of the log of group {group_id} is gone, and the group was not created anew "
            "since; what-if needs the log from the group's first request on"
        )
    first = {group_id: start.request} if start is not None and start.is_cut else None
    entries = Replay[None](recording, lambda _: None, groups={group_id}, first=first).entries()
    rows = [
        Row(entry.message.row.at_ms, entry.event.request_id, entry.event.request)
        for entry in entries
        if isinstance(entry.event, Received) and entry.message is not None
    ]
    if not rows:
        raise WhatIfError(f"the log has no request of group {group_id}")
    _check_protocol(group_id, rows)
    clock_ms = max((line.time_ms for line in recording.log() if isinstance(line, ClockLine)), default=0)
    header = recording.header
    end_ms = clock_ms if header.until_ms is None else min(clock_ms, header.until_ms - 1)
    return GroupLog(
        group_id=group_id,
        rows=rows,
        configs=header.configs,
        until_ms=max(end_ms, rows[-1].at_ms),
        outages=[known.outage for known in header.outages],
    )


def _check_protocol(group_id: str, rows: Sequence[Row]) -> None:
    """Raise WhatIfError if a client of the group has spoken the consumer protocol."""
    first = next((row for row in rows if isinstance(row.request, ConsumerGroupHeartbeat)), None)
    if first is not None:
        raise WhatIfError(
            f"group {group_id} had its first member of the consumer protocol at {Clock().time(first.at_ms)}; "
            "what-if can simulate clients of the classic protocol only, because it has no model of when a "
            "client gives partitions up and says so by ConsumerGroupHeartbeat"
        )
