"""The lines about what clients said of themselves: `its last poll was 5 min 2 s before`."""

from kafka_why.why.clock import duration_text
from kafka_why.why.model import About, ClientSaid, Rebalance
from kafka_why.why.names import Names
from kafka_why.why.wording import Lines

# Said with one more second than the interval at most, because clients say whole seconds.
_ROUNDING_MS = 1_000
_WHEN = {
    About.CAUSE: "before",
    About.REMOVED: "before it was removed",
    About.AWAITED: "before the rebalance began",
}


def client_lines(r: Rebalance, names: Names, *abouts: About) -> Lines:
    """Yield what clients said about these moments of a rebalance."""
    for said in r.clients_said:
        if said.about in abouts:
            is_named = said.about is not About.CAUSE or len(r.cause.member_ids) > 1
            name = f"{names.of(said.member_id)}: " if is_named else ""
            yield "client", f"{name}{_sentence(said)}"


def _sentence(said: ClientSaid) -> str:
    return f"{_certain(said) if said.is_certain else _earlier(said)}{_interval(said)}"


def _certain(said: ClientSaid) -> str:
    when = _WHEN[said.about]
    assert said.last_poll_before_ms is not None, "it is what is certain"
    told = f"its last poll was {_seconds(said.last_poll_before_ms)} {when}"
    if said.last_heartbeat_before_ms is not None:
        told += f", its last heartbeat {_seconds(said.last_heartbeat_before_ms)} {when}"
    return told


def _earlier(said: ClientSaid) -> str:
    """What it said some time before, after which it may have polled again."""
    told = []
    if said.last_poll_before_ms is not None:
        told.append(f"its last poll was {_seconds(said.last_poll_before_ms - said.said_before_ms)} ago")
    if said.last_heartbeat_before_ms is not None:
        ago = _seconds(said.last_heartbeat_before_ms - said.said_before_ms)
        told.append(f"its last heartbeat {'' if told else 'was '}{ago} ago")
    if said.last_poll_before_ms is None and said.poll_idle_ratio is not None:
        told.append(f"{said.poll_idle_ratio:.0%} of its time was in poll()")
    listed = ", ".join(told) or "nothing of its polls"
    return f"{_seconds(said.said_before_ms)} {_WHEN[said.about]} it said: {listed}"


def _interval(said: ClientSaid) -> str:
    """Say the limit where it explains the rest."""
    poll_ms, interval_ms = said.last_poll_before_ms, said.max_poll_interval_ms
    if poll_ms is None or interval_ms is None or poll_ms < interval_ms - _ROUNDING_MS:
        return ""
    return f"; max.poll.interval.ms is {_seconds(interval_ms)}"


def _seconds(ms: int) -> str:
    """Whole seconds that have passed, because clients say no more."""
    seconds = max(ms, 0) // 1_000
    return f"{seconds} s" if seconds < 120 else duration_text(seconds * 1_000)
