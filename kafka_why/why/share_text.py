"""The lines about a share group: what it waits for, and what it has that nobody reads."""

from kafka_why.contract.errors import name_of
from kafka_why.why.clock import duration_text
from kafka_why.why.epoch_text import partitions_text
from kafka_why.why.model import AskedOfShares, SharesNow
from kafka_why.why.wording import Lines, count

MAX_ASKED = 8


def share_lines(shares: SharesNow, now_ms: int) -> Lines:
    """Yield what the share coordinator has not done yet, the oldest first, and what no member has."""
    for place, asked in enumerate(shares.asked[:MAX_ASKED]):
        yield "" if place else "Waiting", asked_text(asked, now_ms)
    if len(shares.asked) > MAX_ASKED:
        yield "", f"and {len(shares.asked) - MAX_ASKED} more"
    if shares.idle:
        number = count(sum(map(len, shares.idle.values())), "partition")
        yield "Idle", f"{number} initialized, and no member has them: {partitions_text(shares.idle)}"


def asked_text(asked: AskedOfShares, now_ms: int) -> str:
    """`orders 0-3: initializing for 31.0 s, last error 15 COORDINATOR_NOT_AVAILABLE (task x-0-0)`."""
    what = "deleting the state" if asked.is_deletion else "initializing"
    lasted = duration_text(max(now_ms - asked.since_ms, 0))
    task = "" if asked.task is None else f" (task {asked.task})"
    which = partitions_text(asked.partitions)
    if not asked.is_open:
        then = "a DeleteGroups" if asked.is_deletion else "the next heartbeat"
        return f"{which}: {error_text(asked.error_code)}; {then} asks again"
    error = "" if asked.error_code is None else f", last {error_text(asked.error_code)}"
    return f"{which}: {what} for {lasted}{error}{task}"


def error_text(code: int | None) -> str:
    """`error 15 COORDINATOR_NOT_AVAILABLE`."""
    name = None if code is None else name_of(code)
    return f"error {code}" if name is None else f"error {code} {name}"
