"""The bounded outbox, and the file that outlives the process."""

import threading
from pathlib import Path

import pytest

from checkpoints.files import FolderError
from insight.notify.kept import FILE, Kept
from insight.notify.messages import Status
from insight.notify.outbox import Outbox, Position, Taken
from tests.unit.insight.notify_messages import rebalance, stuck

TOPIC = "group-coordinator-events"
P1, P2 = {0: Position(10, 1_000)}, {0: Position(20, 2_000)}
ONE, TWO, THREE, FOUR = map(rebalance, range(1, 5))


def test_positions_are_reached_with_the_last_message_before_them() -> None:
    outbox = Outbox()
    outbox.put([ONE, TWO], P1)
    outbox.put([THREE, FOUR], P2)
    assert outbox.head(2) == [ONE, TWO]
    taken = [outbox.take(number) for number in (1, 2, 1, 0)]
    assert taken == [Taken(None, [ONE]), Taken(P1, [THREE]), Taken(P2, []), Taken(None, [])]


def test_positions_without_messages_take_no_room() -> None:
    outbox = Outbox()
    for offset in range(10_000):
        outbox.put([], {0: Position(offset, 0)})
    assert len(outbox._waiting) == 1
    assert outbox.take(0).positions == {0: Position(9_999, 0)}


def test_a_message_that_waits_is_not_put_again() -> None:
    outbox = Outbox()
    outbox.put([stuck(), stuck(Status.ENDED), stuck()])
    outbox.put([stuck()])
    assert outbox.head(9) == [stuck(), stuck(Status.ENDED)]
    outbox.take(2)
    outbox.put([stuck()])
    assert outbox.head(9) == [stuck()]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_full_outbox_holds_up_who_puts_until_there_is_room_or_it_is_closed(is_closed: bool) -> None:
    outbox = Outbox(max_waiting=2)
    outbox.put([ONE, TWO])
    is_put: list[bool] = []
    thread = threading.Thread(target=lambda: is_put.append(outbox.put([THREE], P1)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and outbox.head(9) == [ONE, TWO]
    if is_closed:
        outbox.close()
    else:
        outbox.take(1)
    thread.join(30)
    assert (is_put, outbox.head(9)) == (([False], [ONE, TWO]) if is_closed else ([True], [TWO, THREE]))


def test_what_was_delivered_is_there_after_a_restart(tmp_path: Path) -> None:
    kept = Kept(tmp_path, TOPIC)
    assert (kept.positions, kept.told, kept.open) == ({}, frozenset(), [])
    kept.deliver([ONE, stuck(), stuck(group="payments", id="p")], Taken(P1, [TWO]))
    kept.deliver([stuck(Status.ENDED)], Taken(None, [stuck(Status.ENDED), THREE]))
    kept.save()
    again = Kept(tmp_path, TOPIC)
    assert again.positions == P1
    assert again.told == {TWO.id, THREE.id}
    assert again.open == [stuck(group="payments", id="p")]
    again.deliver([], Taken(P2, []))
    again.save()
    assert Kept(tmp_path, TOPIC).told == frozenset()


def test_a_file_of_another_topic_or_version_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    Kept(tmp_path, "other-events").save()
    with pytest.raises(FolderError, match="is of the topic other-events, not of group-coordinator-events"):
        Kept(tmp_path, TOPIC)
    (tmp_path / FILE).write_text('{"version": 2, "topic": "group-coordinator-events"}')
    with pytest.raises(FolderError, match="has version 2, and this code reads version 1"):
        Kept(tmp_path, TOPIC)
    (tmp_path / FILE).write_text('{"version"')
    with pytest.raises(FolderError, match="is damaged"):
        Kept(tmp_path, TOPIC)
