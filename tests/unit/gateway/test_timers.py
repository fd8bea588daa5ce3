"""The deadlines of a connection: each is set, moved and cancelled, and none is left after the end."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import Limits
from gateway.net.lifecycle import LINGER_S, ClientIdle, Deadline, Drained, SlowReader, Timers
from gateway.wire.framing import ProtocolError
from tests.harness.still_time import StillLoop, in_still_time

LIMITS = Limits(authentication_timeout_s=5.0, idle_timeout_s=20.0, write_timeout_s=3.0)
MUTE_S = 7.0
SECONDS = {
    Deadline.AUTHENTICATION: 5.0,
    Deadline.IDLE: 20.0,
    Deadline.WRITE: 3.0,
    Deadline.MUTE: MUTE_S,
    Deadline.LINGER: LINGER_S,
}
ENDS: dict[Deadline, type[Exception]] = {
    Deadline.AUTHENTICATION: ProtocolError,
    Deadline.IDLE: ClientIdle,
    Deadline.WRITE: SlowReader,
    Deadline.LINGER: Drained,
}


@dataclass(eq=False)
class Client:
    """A connection that is watched."""

    is_busy: bool = False
    held_bytes: int = 100
    ends: list[Exception] = field(default_factory=list)
    unmuted: int = 0

    def end(self, why: Exception) -> None:
        self.ends.append(why)

    def unmute(self) -> None:
        self.unmuted += 1


def watch(timers: Timers, deadline: Deadline, client: Client) -> None:
    match deadline:
        case Deadline.AUTHENTICATION:
            timers.watch_authentication(client)
        case Deadline.IDLE:
            timers.watch_silence(client)
        case Deadline.WRITE:
            timers.watch_writing(client)
        case Deadline.MUTE:
            timers.unmute_after(MUTE_S, client.unmute)
        case Deadline.LINGER:
            timers.watch_linger(client)


@pytest.mark.parametrize("deadline", ENDS)
@in_still_time
async def test_deadline_closes_its_client_and_not_earlier(loop: StillLoop, deadline: Deadline) -> None:
    timers, client = Timers(LIMITS, loop), Client()
    watch(timers, deadline, client)
    await loop.advance(SECONDS[deadline] - 0.1)
    assert (client.ends, timers.running) == ([], frozenset({deadline}))
    await loop.advance(0.2)
    assert [type(end) for end in client.ends] == [ENDS[deadline]]
    assert (timers.running, loop.timers) == (frozenset(), 0)


@in_still_time
async def test_write_timeout_restarts_when_the_client_reads_something(loop: StillLoop) -> None:
    timers, client = Timers(LIMITS, loop), Client(held_bytes=100)
    timers.watch_writing(client)
    for _ in range(5):
        client.held_bytes -= 1
        await loop.advance(3)
    assert client.ends == []
    await loop.advance(3)
    assert str(client.ends[0]) == "it took none of 95 bytes for 3 s"


@in_still_time
async def test_throttled_client_is_unmuted_after_the_latest_throttle_time(loop: StillLoop) -> None:
    timers, client = Timers(LIMITS, loop), Client()
    timers.unmute_after(2, client.unmute)
    timers.unmute_after(4, client.unmute)
    await loop.advance(3)
    assert client.unmuted == 0
    await loop.advance(2)
    assert client.unmuted == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "cancel"]), st.sampled_from(Deadline)),
        st.tuples(st.just("advance"), st.sampled_from([0.5, 2.0, 8.0, 25.0])),
        st.tuples(st.just("stop"), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
@in_still_time
async def test_running_timers_exclude_expired_and_cancelled_ones(
    loop: StillLoop, steps: list[tuple[str, Deadline | float | None]]
) -> None:
    timers, client, is_stopped = Timers(LIMITS, loop), Client(), False
    due: dict[Deadline, float] = {}
    for kind, value in steps:
        if isinstance(value, Deadline) and kind == "set":
            watch(timers, value, client)
            if not is_stopped:
                due[value] = loop.time() + SECONDS[value]
        elif isinstance(value, Deadline):
            timers.cancel(value)
            due.pop(value, None)
        elif value is None:
            timers.stop()
            is_stopped, due = True, {}
        else:
            timers.heard_at_s = -100.0  # a client that was never heard
            await loop.advance(value)
            due = {deadline: at_s for deadline, at_s in due.items() if at_s > loop.time()}
        assert timers.running == due.keys()
        assert loop.timers == len(due)
    timers.stop()
    assert (timers.running, loop.timers) == (frozenset(), 0)
