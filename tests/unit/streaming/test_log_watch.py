"""A replica answers only while a recent poll has seen the requests topic complete."""

from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from streaming.replica.log_watch import CONFIRMED_FOR_S, LogWatch, Loss
from tests.harness.simulated_broker import CLIENT_CONFIG, TOPIC_ID, Admin, Broker

OTHER_ID = "00000000-0000-0007-8000-000000000009"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker(Random(1))
    broker.connect(monkeypatch)
    return broker


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(broker: Broker, clock: Clock) -> LogWatch:
    return LogWatch(CLIENT_CONFIG, "t", TOPIC_ID, {0: 5, 1: 7}, now_s=clock)


UNKNOWN = "the start of the requests topic is not known"


def test_replica_may_answer_for_a_limited_time_after_a_poll_of_the_log(watch: LogWatch, clock: Clock) -> None:
    assert watch.why_silent() == UNKNOWN
    watch.poll()
    clock.now_s += CONFIRMED_FOR_S - 0.001
    assert watch.why_silent() == ""
    clock.now_s += 0.002
    assert watch.why_silent() == UNKNOWN


def test_deleted_records_silence_the_replica_until_a_batch_passes(watch: LogWatch, broker: Broker) -> None:
    broker.starts["t", 0], broker.starts["t", 1] = 5, 8
    watch.poll()
    assert watch.loss() == Loss(reason="records were deleted before they were handled: t[1] 7 to 7")
    assert watch.why_silent() == "records were deleted before they were handled: t[1] 7 to 7"
    watch.committed({1: 8})
    assert (watch.why_silent(), watch.loss()) == ("", None)


def test_recreated_requests_topic_is_not_taken_for_the_log(broker: Broker) -> None:
    watch = LogWatch(CLIENT_CONFIG, "t", OTHER_ID, {0: 5})
    watch.poll()
    assert watch.loss() == Loss(reason="t was deleted and created again", is_other_topic=True)
    assert watch.why_silent() == "t was deleted and created again"


def test_topic_unknown_to_all_brokers_is_a_loss(watch: LogWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    watch.poll()
    with monkeypatch.context() as patch:
        patch.setattr(
            Admin, "describe_topics", failing(Admin.describe_topics, KafkaError.UNKNOWN_TOPIC_OR_PART)
        )
        watch.poll()
    assert watch.loss() == Loss(reason="t does not exist any more")
    assert watch.why_silent() == "t does not exist any more"
    watch.poll()
    assert watch.loss() is None


@pytest.mark.parametrize("call", ["list_offsets", "describe_topics"])
def test_replica_stops_answering_while_brokers_do_not_respond(
    watch: LogWatch, clock: Clock, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    watch.poll()
    monkeypatch.setattr(Admin, call, failing(getattr(Admin, call)))
    with pytest.raises(KafkaException):
        watch.poll()
    assert watch.why_silent() == ""
    clock.now_s += CONFIRMED_FOR_S + 0.001
    assert watch.why_silent() == UNKNOWN


def failing(
    call: Callable[..., Any], code: int = KafkaError._TIMED_OUT
) -> Callable[..., dict[Any, Future[Any]]]:
    def fail(*arguments: Any, **settings: Any) -> dict[Any, Future[Any]]:
        futures = call(*arguments, **settings)
        failed: Future[Any] = Future()
        failed.set_exception(KafkaException(KafkaError(code)))
        return dict.fromkeys(futures or ["t"], failed)

    return fail
