"""The courier sends the wanted messages, in time and so many at once, and loses none."""

import json
import threading
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kafka_why.local_files import FolderError, FolderNotWritable
from kafka_why.notify.courier import (
    FILE,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    LONGEST_RETRY_AFTER_S,
    MINUTE_S,
    SAVE_INTERVAL_S,
    BackOff,
    Courier,
    RateLimit,
    StateFile,
)
from kafka_why.notify.messages import KINDS, Filter, Message, Outbox, Position, Status
from kafka_why.notify.receiver import Answer, Verdict
from kafka_why.notify.request_bodies import SHAPES, Shape
from tests.unit.kafka_why.notify_messages import alarm, rebalance, stuck

TOPIC = "group-coordinator-events"
ONE, TWO, THREE = map(rebalance, range(1, 4))


def test_outbox_merges_positions_without_messages() -> None:
    outbox = Outbox()
    for offset in range(10_000):
        outbox.put([], {0: Position(offset, 0)})
    assert len(outbox._waiting) == 1
    assert outbox.take(0).positions == {0: Position(9_999, 0)}


def test_queued_message_is_not_enqueued_again() -> None:
    outbox = Outbox()
    outbox.put([stuck(), stuck(Status.ENDED), stuck()])
    outbox.put([stuck()])
    assert outbox.head(9) == [stuck(), stuck(Status.ENDED)]
    outbox.take(2)
    outbox.put([stuck()])
    assert outbox.head(9) == [stuck()]


@pytest.mark.parametrize("is_closed", [False, True])
def test_full_outbox_blocks_put_until_capacity_is_free_or_it_is_closed(is_closed: bool) -> None:
    outbox = Outbox(max_waiting=2)
    outbox.put([ONE, TWO])
    is_put: list[bool] = []
    thread = threading.Thread(target=lambda: is_put.append(outbox.put([THREE], {0: Position(10, 0)})))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and outbox.head(9) == [ONE, TWO]
    if is_closed:
        outbox.close()
    else:
        outbox.take(1)
    thread.join(30)
    assert (is_put, outbox.head(9)) == (([False], [ONE, TWO]) if is_closed else ([True], [TWO, THREE]))


def test_notify_state_file_of_another_topic_or_version_or_damaged_is_refused(tmp_path: Path) -> None:
    StateFile(tmp_path, "other-events").save()
    with pytest.raises(FolderError, match="is for topic other-events, not for group-coordinator-events"):
        StateFile(tmp_path, TOPIC)
    (tmp_path / FILE).write_text('{"version": 2, "topic": "group-coordinator-events"}')
    with pytest.raises(FolderError, match="has version 2, and this code reads version 1"):
        StateFile(tmp_path, TOPIC)
    (tmp_path / FILE).write_text('{"version"')
    with pytest.raises(FolderError, match="is damaged"):
        StateFile(tmp_path, TOPIC)


OK, FAILED, REFUSED = (
    Answer(Verdict.ACCEPTED),
    Answer(Verdict.FAILED, "it hangs"),
    Answer(Verdict.REFUSED, "no"),
)


class Killed(Exception):
    """The process is killed after the receiver has accepted a request, and before that is kept."""


class World:
    """A courier with a clock that only the test moves, and a receiver with scripted answers, then OK. If an
    answer is `Killed`, the receiver accepts the request and the process ends.
    """

    def __init__(self, folder: Path, *answers: Answer | type[Killed], per_minute: int = 10_000) -> None:
        self.now_s = 1_000.0
        self.bodies: list[list[str]] = []
        self.accepted: list[str] = []
        self.answers = deque(answers)
        self.outbox = Outbox()
        self.state_file = StateFile(folder, TOPIC)
        shape = Shape(SHAPES["json"].body, max_messages=4)
        self.courier = Courier(
            self.outbox,
            self._post,
            shape,
            self.state_file,
            RateLimit(per_minute),
            BackOff(lambda: 0.0),
            now_s=lambda: self.now_s,
            now_ms=lambda: 0,
        )

    def put(self, *messages: Message, offset: int | None = None) -> None:
        self.outbox.put(messages, None if offset is None else {0: Position(offset, 0)})

    def turn_until_idle(self) -> None:
        """Turn as the thread does. To wait is to move the clock."""
        while (wait_s := self.courier.turn()) is not None:
            self.now_s += wait_s

    def _post(self, body: bytes) -> Answer:
        ids = [message["id"] for message in json.loads(body)["messages"]]
        self.bodies.append(ids)
        answer = self.answers.popleft() if self.answers else OK
        if answer is Killed or answer is OK:
            self.accepted += ids
        if isinstance(answer, Answer):
            return answer
        raise answer


def ids(messages: Sequence[Message]) -> list[str]:
    return [message.id for message in messages]


MANY = [rebalance(number) for number in range(6)]


@pytest.mark.parametrize(
    ("answer", "per_minute", "pauses_s"),
    [
        (FAILED, 10_000, [1, 2]),
        # The receiver says how long to wait.
        (Answer(Verdict.FAILED, "it answers 429", 90.0), 10_000, [90, 90]),
        # Attempts that fail count for the rate limit.
        (FAILED, 2, [1, 59]),
    ],
)
def test_notify_resends_the_same_messages_after_a_failure(
    tmp_path: Path, answer: Answer, per_minute: int, pauses_s: list[int]
) -> None:
    world = World(tmp_path, answer, answer, per_minute=per_minute)
    world.put(MANY[0], offset=9)
    for attempts, pause_s in enumerate(pauses_s, 1):
        assert world.courier.turn() == 0
        assert world.courier.turn() == pause_s
        assert (len(world.bodies), StateFile(tmp_path, TOPIC).positions) == (attempts, {})
        world.now_s += pause_s
    world.turn_until_idle()
    assert world.bodies == 3 * [[MANY[0].id]]
    assert StateFile(tmp_path, TOPIC).positions == {0: Position(9, 0)}


def test_only_the_refused_message_of_a_batch_is_dropped(tmp_path: Path) -> None:
    """The receiver refuses whatever has the third one."""
    world = World(tmp_path)
    refusing = world._post
    bad = MANY[2].id

    def post(body: bytes) -> Answer:
        world.answers.append(REFUSED if bad in body.decode() else OK)
        return refusing(body)

    world.courier._post = post
    world.put(*MANY, offset=9)
    with capture_logs() as logs:
        world.turn_until_idle()
    assert sorted(world.accepted) == sorted(one.id for one in MANY if one.id != bad)
    (dropped,) = [line for line in logs if line["log_level"] == "error"]
    assert (dropped["event"], dropped["group"], dropped["why"]) == (
        "the receiver refuses a message, which is dropped",
        "orders",
        "no",
    )
    assert StateFile(tmp_path, TOPIC).positions == {0: Position(9, 0)}


def test_unwritable_state_file_stops_no_notification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)

    def fail() -> None:
        raise FolderNotWritable("the disk is full")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(world.state_file, "save", fail)
        world.put(MANY[0], offset=9)
        world.turn_until_idle()
    assert world.accepted == [MANY[0].id]
    warned = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert warned == ["saving the position failed, trying again"]
    world.now_s += SAVE_INTERVAL_S
    world.turn_until_idle()
    assert StateFile(tmp_path, TOPIC).positions == {0: Position(9, 0)}


@given(
    turns=st.lists(st.integers(0, 6), max_size=12),
    answers=st.lists(st.sampled_from([OK, FAILED, Killed]), max_size=20),
)
def test_notify_repeats_only_messages_in_flight_at_a_kill_and_loses_none(
    turns: list[int], answers: list[Answer | type[Killed]]
) -> None:
    topic = [
        [rebalance(10 * offset + place) for place in range(number)] for offset, number in enumerate(turns)
    ]
    accepted: list[str] = []
    under_way: list[str] = []
    with TemporaryDirectory() as folder:
        is_over = False
        while not is_over:
            world = World(Path(folder), *answers)
            begin = world.state_file.positions[0].offset if world.state_file.positions else 0
            for offset in range(begin, len(topic)):
                new = [message for message in topic[offset] if message.id not in world.state_file.sent]
                world.put(*new, offset=offset + 1)
            try:
                world.turn_until_idle()
                world.courier.save_delivered()
                is_over = True
            except Killed:
                under_way += world.bodies[-1]
            answers = list(world.answers)
            accepted += world.accepted
        times, killed = Counter(accepted), Counter(under_way)
        assert set(times) == {message.id for messages in topic for message in messages}
        assert all(number == 1 + killed[one] for one, number in times.items())
        assert StateFile(Path(folder), TOPIC).positions == ({0: Position(len(topic), 0)} if topic else {})


NOW_MS = 10_000


EU = rebalance(group="orders-eu")


@pytest.mark.parametrize(
    ("chosen", "message", "wanted"),
    [
        (Filter(), EU, True),
        (Filter(("orders-*",)), EU, True),
        (Filter(("Orders-*",)), EU, False),
        (Filter(("payments", "orders-e?")), EU, True),
        (Filter(("payments",)), EU, False),
        (Filter(("orders-*",), ("*-eu",)), EU, False),
        (Filter((), ("payments",)), EU, True),
        # Alarms are of no group.
        (Filter(("orders",), ("*",)), alarm(), True),
        (Filter(kinds=frozenset(["stuck"])), stuck(), True),
        (Filter(kinds=frozenset(["stuck"])), rebalance(), False),
        *((Filter(), rebalance(kind=kind), True) for kind in KINDS),
        # A rebalance took a second. What lasts began at 1 s, so it has lasted for 9 s.
        (Filter(least_ms=1_000), rebalance(), True),
        (Filter(least_ms=1_001), rebalance(), False),
        (Filter(least_ms=9_000), stuck(), True),
        (Filter(least_ms=9_001), stuck(), False),
    ],
)
def test_notify_filter_uses_group_kind_and_duration(chosen: Filter, message: Message, wanted: bool) -> None:
    assert chosen.wants(message, NOW_MS) is wanted


@given(st.integers(1, 5), st.lists(st.floats(0, 30), max_size=60))
def test_notify_requests_per_minute_stay_within_the_limit(per_minute: int, pauses_s: list[float]) -> None:
    limit, now_s, sent_s = RateLimit(per_minute), 0.0, []
    for pause_s in pauses_s:
        now_s += pause_s
        now_s += limit.wait_s(now_s)
        limit.sent(now_s)
        sent_s.append(now_s)
    for first_s, beyond_s in zip(sent_s, sent_s[per_minute:], strict=False):
        assert beyond_s - first_s >= MINUTE_S - 1e-6


def test_notify_retry_pause_doubles_up_to_a_minute_until_a_success() -> None:
    back_off = BackOff(lambda: 0.0)
    assert [back_off.failed() for _ in range(8)] == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    back_off.worked()
    assert back_off.failed() == FIRST_PAUSE_S


@pytest.mark.parametrize(("asked_s", "pause_s"), [(0.5, 1), (120, 120), (1e9, LONGEST_RETRY_AFTER_S)])
def test_notify_receiver_may_extend_the_pause_within_bounds(asked_s: float, pause_s: float) -> None:
    assert BackOff(lambda: 0.0).failed(asked_s) == pause_s
