"""The faults and changes that polls of a RocketMQ group show, over pictures of a cluster."""

from datetime import UTC

from msgspec.structs import replace

from kafka_why.contract.rocketmq.requests import MessageQueue
from kafka_why.why.rocketmq.polled.changes import change_line, changes, poll_report_text, symptom_changes
from kafka_why.why.rocketmq.polled.model import (
    BrokerView,
    ClientAnswer,
    GroupPoll,
    HeldQueue,
    PolledConnection,
    QueueOffsets,
    Symptom,
    SymptomKind,
)
from kafka_why.why.rocketmq.polled.symptoms import AVERAGELY, poll_report, shares
from kafka_why.wording import Clock

START_MS = 1_795_000_000_000
TOPICS = {"T": "*", "%RETRY%g": "*"}


def queue(number: int, topic: str = "T", broker: str = "a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


QUEUES = [queue(number) for number in range(7)]


def view(*clients: str, broker: str = "a/0", **given: object) -> BrokerView:
    """A broker's view with a connection for each client id, also for one that is there twice."""
    connections = [
        PolledConnection(client_id, f"10.0.0.{place}:{place}", "JAVA", 513)
        for place, client_id in enumerate(clients, 1)
    ]
    of_push = {"message_model": "CLUSTERING", "consume_type": "CONSUME_PASSIVELY", "subscriptions": TOPICS}
    return BrokerView(broker=broker, connections=connections, **(of_push | given))  # type: ignore[arg-type]


def client(client_id: str, *numbers: int, **given: object) -> ClientAnswer:
    usual = {
        "subscriptions": TOPICS,
        "held": [HeldQueue(queue(number)) for number in numbers],
        "message_model": "CLUSTERING",
        "strategy": AVERAGELY,
        "started_ms": START_MS,
    }
    return ClientAnswer(client_id=client_id, broker="a/0", **(usual | given))  # type: ignore[arg-type]


def poll(views: list[BrokerView], clients: list[ClientAnswer], **given: object) -> GroupPoll:
    usual = {"group_id": "g", "at_ms": START_MS + 60_000, "queues": QUEUES}
    return GroupPoll(views=views, clients=clients, **(usual | given))  # type: ignore[arg-type]


def later(before: GroupPoll, **given: object) -> GroupPoll:
    return replace(before, at_ms=before.at_ms + 10_000, **given)


def symptoms(found: GroupPoll, before: GroupPoll | None = None) -> dict[SymptomKind, Symptom]:
    return {one.kind: one for one in poll_report(found, before).symptoms}


WELL = poll([view("A", "B")], [client("A", 0, 1, 2, 3), client("B", 4, 5, 6)])


def test_healthy_rocketmq_group_has_no_symptom() -> None:
    assert symptoms(later(WELL), WELL) == {}
    assert shares(WELL) == {"A": QUEUES[:4], "B": QUEUES[4:]}
    text = poll_report_text(poll_report(later(WELL), WELL), Clock(UTC))
    assert text.splitlines()[0] == "Group g of RocketMQ has 2 clients, and no fault that polls show"
    assert "A (10.0.0.1:1 at a/0)  T 0-3 of a" in text
    assert "its share" not in text


def test_duplicate_client_id_names_both_addresses_and_the_queues_that_nobody_reads() -> None:
    found = poll(
        [view("A", "A")], [client("A", 0, 1, 2, 3), client("A", 0, 1, 2, 3, started_ms=START_MS + 5)]
    )
    report = symptoms(found)
    duplicate = report[SymptomKind.DUPLICATE]
    assert "A is on 2 connections to a/0: 10.0.0.1:1 and 10.0.0.2:2" in duplicate.reason
    assert (duplicate.queues, duplicate.since_ms) == (QUEUES[:4], START_MS + 5)
    assert report[SymptomKind.NO_READER].queues == QUEUES[4:]
    assert report[SymptomKind.TWO_READERS].queues == QUEUES[:4]
    headline = poll_report_text(poll_report(found, None), Clock(UTC)).splitlines()[0]
    assert headline.startswith("Group g of RocketMQ has DUPLICATE CLIENT ID, queues without a reader")


def test_symptoms_ignore_unknown_start_times_and_queues_that_are_moving() -> None:
    one_answer = poll([view("A", "A")], [client("A", 0, 1, 2, 3)])
    assert symptoms(one_answer)[SymptomKind.DUPLICATE].since_ms is None
    both = [client("A", 0, 1, 2, 3, started_ms=None), client("A", 0, 1, 2, 3)]
    assert symptoms(poll([view("A", "A")], both))[SymptomKind.DUPLICATE].since_ms is None
    moving = replace(WELL, clients=[client("A", 0, 1, 2, 3), client("B", 3, 4, 5, 6)])
    assert symptoms(later(moving), WELL) == {}
    assert symptoms(later(moving), moving)[SymptomKind.TWO_READERS].queues == [queue(3)]


def test_duplicate_client_id_is_no_symptom_in_a_broadcasting_group() -> None:
    every = [client("A", *range(7), message_model="BROADCASTING") for _ in range(2)]
    found = poll([view("A", "A", message_model="BROADCASTING")], every)
    assert symptoms(found) == {}
    every[0] = replace(every[0], subscriptions={"T": "TagA"}, strategy="Other")
    (differs,) = symptoms(found).values()
    assert "share" not in differs.reason


def test_clients_with_different_subscriptions_are_reported_with_their_topics() -> None:
    prices = [queue(number, "P") for number in range(4)]
    other = client("B", 4, 5, 6, subscriptions={"T": "TagA", "P": "*"}, started_ms=START_MS + 7)
    other = replace(other, held=[*other.held, *(HeldQueue(one) for one in prices[2:])])
    found = symptoms(poll([view("A", "B")], [client("A", 0, 1, 2, 3), other], queues=[*QUEUES, *prices]))
    differs = found[SymptomKind.SUBSCRIPTIONS]
    assert "T: A (10.0.0.1:1 at a/0); P, T (TagA): B (10.0.0.2:2 at a/0). " in differs.reason
    assert differs.since_ms == START_MS + 7
    assert found[SymptomKind.NO_READER].queues == prices[:2]


def test_models_and_strategies_that_differ_are_reported_with_their_clients() -> None:
    other = client("B", message_model="BROADCASTING", strategy="AllocateMessageQueueAveragelyByCircle")
    found = symptoms(poll([view("A", "B")], [client("A"), other]))
    assert "BROADCASTING: B (10.0.0.2:2 at a/0)" in found[SymptomKind.MODELS].reason
    assert f"{AVERAGELY}: A (10.0.0.1:1 at a/0)" in found[SymptomKind.STRATEGIES].reason
    every = poll(
        [view("A", "B")], [client("A", 0, 1, 2, 3), client("B", *range(7), message_model="BROADCASTING")]
    )
    assert list(symptoms(every)) == [SymptomKind.MODELS]
    assert shares(every) == {"A": QUEUES[:4]}


def test_queue_without_a_reader_is_reported_only_if_both_polls_show_it() -> None:
    without = poll([view("A", "B")], [client("A", 0, 1, 2, 3), client("B", 4, 5)])
    assert SymptomKind.NO_READER not in symptoms(later(without), WELL)
    offsets = [QueueOffsets(queue(6), 5, 12)]
    found = symptoms(later(without, offsets=offsets), without)[SymptomKind.NO_READER]
    assert (found.queues, found.reason) == ([queue(6)], "nobody reads T 6 of a; 7 messages wait there")
    assert "If it stays so, restart B (10.0.0.2:2 at a/0), whose share it is" in found.to_do


def test_queue_for_retries_needs_no_reader_and_is_in_no_share() -> None:
    retries = replace(WELL, queues=[*QUEUES, queue(0, "%RETRY%g")])
    assert symptoms(retries) == {}
    assert shares(retries) == shares(WELL)


def test_missing_reader_is_not_reported_if_a_share_is_unknown() -> None:
    silent = client("B", error="timeout", is_silent=True)
    own = client("A", 0, strategy="OurStrategy")
    assert SymptomKind.NO_READER not in symptoms(poll([view("A", "B")], [own, silent]))


def test_queues_popped_by_every_client_have_a_reader() -> None:
    clients = [client("A", -1, pops=True), client("B", -1, pops=True, strategy="Other")]
    found = poll([view("A", "B"), view("A", broker="b/0")], clients, offsets=[QueueOffsets(queue(0), 5, 8)])
    assert symptoms(found) == {}
    assert shares(found) == {}
    assert symptoms(later(found), found)[SymptomKind.STANDING].client_ids == ["A", "B"]


def test_brokers_that_list_different_clients_in_two_polls_are_named() -> None:
    split = poll([view("A", "B"), view("A", broker="b/0")], WELL.clients)
    assert SymptomKind.VIEWS not in symptoms(later(split), WELL)
    reason = symptoms(later(split), split)[SymptomKind.VIEWS].reason
    assert reason.startswith("missing at b/0: B (10.0.0.2:2 at a/0). ")
    two = replace(split, views=[*split.views, view("A", broker="c/0")])
    assert symptoms(later(two), two)[SymptomKind.VIEWS].reason.startswith("missing at b/0, c/0: B ")
    away = replace(split, views=[split.views[0], BrokerView(broker="b/0", error="no answer")])
    assert symptoms(away, away) == {}


def test_stalled_offset_names_its_reader_and_its_last_consume_time() -> None:
    held = [HeldQueue(queue(0), START_MS + 9, 3)]
    before = poll([view("A")], [client("A", 1, 2, 3, 4, 5, 6)], offsets=[QueueOffsets(queue(0), 5, 8)])
    before = replace(before, clients=[replace(before.clients[0], held=[*before.clients[0].held, *held])])
    stands = later(before, offsets=[QueueOffsets(queue(0), 5, 12)])
    found = symptoms(stands, before)[SymptomKind.STANDING]
    assert found.reason == (
        "T 0 of a: no offset moved between two polls while 7 messages waited, 4 more than before; "
        "read by A (10.0.0.1:1 at a/0), with 3 of them fetched"
    )
    assert (found.queues, found.client_ids, found.since_ms) == ([queue(0)], ["A"], START_MS + 9)
    young = replace(before.clients[0], started_ms=stands.at_ms - 15_000)
    broadcasts = [view("A", message_model="BROADCASTING")]
    for other in ({"clients": [young]}, {"clients": [client("B", 0)]}, {"views": broadcasts}):
        assert SymptomKind.STANDING not in symptoms(replace(stands, **other), before)
    moved = later(before, offsets=[QueueOffsets(queue(0), 6, 12)])
    assert symptoms(moved, before) == {}
    assert symptoms(replace(stands, at_ms=before.at_ms + 2_000), before) == {}
    just_came = replace(before, offsets=[QueueOffsets(queue(0), 5, 5)])
    assert symptoms(stands, just_came) == {}


def test_poll_comparison_reports_changed_clients_queues_subscriptions_and_faults() -> None:
    third = poll(
        [view("A", "B", "C")],
        [client("A", 0, 1, 2), client("B", 3, 4, subscriptions={"T": "TagA"}), client("C", 5, 6)],
    )
    told = [(one.type, one.client_id, one.reason) for one in changes(WELL, later(third))]
    assert told == [
        ("ClientConnected", "C", "came on 10.0.0.3:3 at a/0"),
        ("QueuesMoved", "A", "gave up T 3 of a"),
        ("QueuesMoved", "B", "took T 3 of a, gave up T 5-6 of a"),
        ("QueuesMoved", "C", "took T 5-6 of a"),
        ("SubscriptionChanged", "B", "subscribes to T (TagA)"),
    ]
    gone = next(changes(third, later(WELL)))
    assert "ClientGone [C]: is no longer on 10.0.0.3:3 at a/0; it is on no other connection" in change_line(
        gone
    )
    faults = poll_report(third, WELL).symptoms
    (began,) = symptom_changes([], faults, "g", 1)
    assert began.reason.startswith("different subscriptions: ")
    assert [one.type for one in symptom_changes(faults, [], "g", 2)] == ["FaultOver"]
    assert list(symptom_changes(faults, faults, "g", 3)) == []


def test_unresponsive_client_is_not_shown_as_giving_up_its_queues() -> None:
    silent = replace(WELL, clients=[WELL.clients[0], client("B", error="timeout", is_silent=True)])
    assert list(changes(WELL, silent)) == list(changes(silent, WELL)) == []
    missed = poll([view(error="timeout"), view("A", broker="b/0")], WELL.clients[:1])
    there = poll([view("B"), view("A", broker="b/0")], WELL.clients)
    assert list(changes(there, missed)) == list(changes(missed, there)) == []


def test_lag_is_shown_by_queue_the_largest_first() -> None:
    offsets = [QueueOffsets(queue(n), 5, 5 + lag) for n, lag in enumerate((2, 0, 9))]
    text = poll_report_text(poll_report(replace(WELL, offsets=offsets), None), Clock(UTC))
    assert "T: 7 queues, 11 messages behind (2 of a: 9, 0 of a: 2)\n" in text
    level = poll_report_text(poll_report(replace(WELL, offsets=offsets[1:2]), None), Clock(UTC))
    assert "T: 7 queues, 0 messages behind\n" in level
