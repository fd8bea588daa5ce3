"""The claims of a standby: on a real broker, with clock records, and without Spark."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from embedded.broker import EmbeddedBroker
from kafka_why.contract.claims import Claim
from kafka_why.contract.layout import TopicLayout
from streaming.service.ownership import owner
from streaming.service.ownership.lease import Standby
from streaming.service.ownership.owner import NotOwner, TopicsOwnership
from streaming.service.topics import prepare_topics
from tests.e2e.harness import clock_claims, new_layout, read_topic, wait_until
from tests.faults.test_owner import claim_of, claim_topics, running, ticking

pytestmark = pytest.mark.e2e

# As in the product, a pause of this process of up to `standby.LONG_LOOK_S` is not enough by itself.
SILENCE_S = 2.0


@pytest.fixture(autouse=True)
def soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "SILENCE_MS", SILENCE_S * 1000)


@pytest.fixture
def layout(broker: EmbeddedBroker) -> TopicLayout:
    layout = new_layout()
    prepare_topics(broker.client_config, layout)
    return layout


class Waiting:
    """A standby that waits in a thread until `stop`."""

    def __init__(self, broker: EmbeddedBroker, layout: TopicLayout, claim: Claim) -> None:
        self.ownership = TopicsOwnership(broker.client_config, layout)
        self.reasons: list[str] = []
        self.error: NotOwner | None = None
        self.has_taken = False
        self._standby = Standby(broker.client_config, layout, self.ownership, self.reasons.append)
        self._claim = claim
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.has_taken = self._standby.claim_when_silent(self._claim, self._stopping, take_over=False)
        except NotOwner as error:
            self.error = error

    def wait_until_taken(self) -> None:
        wait_until(lambda: self.has_taken, "the claim of the standby")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.ownership.close()


@contextmanager
def waiting(
    broker: EmbeddedBroker, layout: TopicLayout, name: str = "two", state: str = "one"
) -> Iterator[Waiting]:
    standby = Waiting(broker, layout, claim_of(state, f"/data/{name}"))
    try:
        yield standby
    finally:
        standby.stop()


def test_standby_claims_only_after_clock_records_stop(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    assert claim_topics(broker, layout, claim_of("one")) == 1
    with ExitStack() as clock, waiting_behind(clock, broker, layout) as standby:
        time.sleep(2 * SILENCE_S)
        assert not standby.has_taken or longest_silence_s(broker, layout) >= SILENCE_S
        clock.close()
        standby.wait_until_taken()
        assert standby.ownership.epoch == 2
        (reason,) = standby.reasons
        assert reason.startswith("the coordinator that owns the topics runs: process ")


def longest_silence_s(broker: EmbeddedBroker, layout: TopicLayout) -> float:
    """Return the longest time without a clock record in the first partition: a busy machine delays them."""
    until_ms = int(time.time() * 1000)
    claims = clock_claims(read_topic(broker.client_config, layout.requests_topic))
    appended_ms = [at_ms for partition, _, at_ms in claims if partition == 0]
    return max(after - before for before, after in pairwise([*appended_ms, until_ms])) / 1000


@contextmanager
def waiting_behind(clock: ExitStack, broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[Waiting]:
    """Yield a standby of an owner whose clock records have begun, and end with `clock`."""
    clock.enter_context(ticking(broker, layout, owner_epoch=1))
    with waiting(broker, layout) as standby:
        yield standby


def test_standby_claims_new_topics_and_those_of_its_own_folder_at_once(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of its folder shows that the process before it has ended."""
    monkeypatch.setattr(owner, "SILENCE_MS", 60_000)
    for epoch in (1, 2):
        with waiting(broker, layout) as standby:
            standby.wait_until_taken()
            assert standby.ownership.epoch == epoch


def test_equal_paths_on_machines_of_the_same_name_are_distinguished(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    claim_topics(broker, layout, claim_of("one", place="first/1"))
    with running(broker, layout, owner_epoch=1), pytest.raises(NotOwner, match="that is running"):
        claim_topics(broker, layout, claim_of("one", place="second/1"))


def test_released_claim_is_taken_over_without_a_wait(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The active coordinator has ended in order, as for an upgrade."""
    monkeypatch.setattr(owner, "SILENCE_MS", 60_000)
    with (
        TopicsOwnership(broker.client_config, layout) as first,
        waiting_after(first, broker, layout) as standby,
    ):
        with ticking(broker, layout, owner_epoch=1):
            time.sleep(1)
            assert not standby.has_taken
        first.release()
        standby.wait_until_taken()
        first.release()  # too late: it changes nothing
        assert standby.ownership.confirm_successor() is None


@contextmanager
def waiting_after(first: TopicsOwnership, broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[Waiting]:
    first.claim(claim_of("one"), take_over=False)
    with waiting(broker, layout) as standby:
        yield standby


def test_one_of_two_standbys_takes_over_and_the_other_keeps_waiting(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until the first one's clock records come, which may be late on a busy machine, silence shows nothing.
    monkeypatch.setattr(owner, "SILENCE_MS", 60_000)
    with TopicsOwnership(broker.client_config, layout) as before:
        before.claim(claim_of("one"), take_over=False)
        before.release()
    with waiting(broker, layout, "two") as two, waiting(broker, layout, "three") as three:
        wait_until(lambda: two.has_taken or three.has_taken, "the claim of one")
        first, second = (two, three) if two.has_taken else (three, two)
        with ticking(broker, layout, first.ownership.epoch):
            monkeypatch.setattr(owner, "SILENCE_MS", SILENCE_S * 1000)
            time.sleep(2 * SILENCE_S)
            assert not second.has_taken or longest_silence_s(broker, layout) >= SILENCE_S
        second.wait_until_taken()
        assert second.ownership.epoch == first.ownership.epoch + 1


def test_standby_for_another_state_is_refused(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    """It would wait for ever, or repeat the answer to every request."""
    claim_topics(broker, layout, claim_of("one"))
    with waiting(broker, layout, state="another") as standby:
        wait_until(lambda: standby.error is not None, "the refusal")
        assert "belong to the state of another folder" in str(standby.error)


def test_standby_does_not_take_over_because_of_a_broker_outage(tmp_path: Path) -> None:
    """The owner cannot append clock records then. It must not lose the topics because of that."""
    layout = TopicLayout.named(f"test-{uuid4()}")
    with EmbeddedBroker(tmp_path / "broker") as broker:
        prepare_topics(broker.client_config, layout)
        claim_topics(broker, layout, claim_of("one"))
        with ticking(broker, layout, owner_epoch=1) as ticker:
            threads = threading.active_count()
            with waiting(broker, layout) as standby:
                wait_until(lambda: bool(standby.reasons), "the standby's first look")
                broker.kill()
                wait_until(lambda: ticker.alarm is not None, "the alarm")
                assert "the broker acknowledges no clock record" in str(ticker.alarm)
                stood_at_ms = ticker.attested_ms
                broker.start()
                wait_until(lambda: ticker.alarm is None, "time going on")
                assert ticker.attested_ms > stood_at_ms
                claims = clock_claims(read_topic(broker.client_config, layout.requests_topic))
                assert all(claim_ms < append_ms for _, claim_ms, append_ms in claims)
                wait_until(lambda: ticker.age_s() < 1, "clock records again")
                time.sleep(SILENCE_S)
                assert not standby.has_taken
            assert threading.active_count() <= threads
            # A call that waits out the broker's absence has nothing to say.
            sees_owner, *others = standby.reasons
            assert {it.partition(":")[0] for it in others if it != sees_owner} <= {"no broker answers"}
            broker.stop()
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 30  # to stop it does not need the broker
