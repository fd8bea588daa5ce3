"""Claims on the topics at a real broker. `test_campaign` has coordinators in their own processes.

Two coordinators on the same topics with different folders would answer every request twice, and differently.
"""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import msgspec
import pytest

from checkpoints.metadata import Moved
from embedded.broker import EmbeddedBroker
from kafka_why.contract.claims import Claim
from kafka_why.contract.layout import TopicLayout
from streaming.service.clock.ticker import Ticker
from streaming.service.ownership.owner import ClockRecords, NotOwner, TopicsOwnership
from streaming.service.topics import prepare_topics
from tests.e2e.harness import new_layout, wait_until

pytestmark = pytest.mark.e2e

TICK_INTERVAL_MS = 50
TOPIC_ID = "topic-id"
HOST = socket.gethostname()


@pytest.fixture
def layout(broker: EmbeddedBroker) -> TopicLayout:
    layout = new_layout()
    prepare_topics(broker.client_config, layout)
    return layout


def claim_of(owner: str, folder: str = "/data/one", **changes: object) -> Claim:
    claim = Claim(
        epoch=0,
        claim_id=str(uuid4()),
        owner_id=owner,
        requests_topic_id=TOPIC_ID,
        host=HOST,
        pid=os.getpid(),
        folder=folder,
        since_ms=1_700_000_000_000,
        tick_interval_ms=TICK_INTERVAL_MS,
    )
    return msgspec.structs.replace(claim, **changes)


def claim_topics(
    broker: EmbeddedBroker,
    layout: TopicLayout,
    claim: Claim,
    *,
    take_over: bool = False,
    moved: Moved | None = None,
) -> int:
    """Claim the topics permanently. Return the epoch."""
    with TopicsOwnership(broker.client_config, layout) as ownership:
        ownership.claim(claim, take_over=take_over, moved=moved)
        return ownership.epoch


@contextmanager
def ticking(broker: EmbeddedBroker, layout: TopicLayout, owner_epoch: int | None) -> Iterator[Ticker]:
    ticker = Ticker(
        broker.client_config,
        layout.requests_topic,
        layout.request_partitions,
        owner_epoch=owner_epoch,
        interval_ms=TICK_INTERVAL_MS,
    )
    ticker.start()
    try:
        wait_until(lambda: ticker.attested_ms > 0, "the ticker's first round")
        yield ticker
    finally:
        ticker.stop()


@contextmanager
def running(broker: EmbeddedBroker, layout: TopicLayout, owner_epoch: int | None) -> Iterator[None]:
    """Append a coordinator's clock records until the block ends. Late ones are awaited."""
    with pytest.MonkeyPatch.context() as patch, ticking(broker, layout, owner_epoch):
        patch.setattr("streaming.service.ownership.owner.SILENCE_MS", 60_000)
        yield


def test_same_folder_reclaims_its_topics_without_waiting(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    """As after SIGKILL: the holder of the folder's lock need not check if another process runs."""
    assert claim_topics(broker, layout, claim_of("one")) == 1
    with running(broker, layout, owner_epoch=1):
        assert claim_topics(broker, layout, claim_of("one")) == 2


def test_same_state_on_another_machine_is_refused_while_the_first_runs(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    """The lock of a copied folder proves nothing."""
    claim_topics(broker, layout, claim_of("one"))
    with running(broker, layout, owner_epoch=1), pytest.raises(NotOwner, match="that is running"):
        claim_topics(broker, layout, claim_of("one", host="another"))
    assert claim_topics(broker, layout, claim_of("one", host="another")) == 2


def test_topics_owned_by_another_folder_are_refused(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    claim_topics(broker, layout, claim_of("one"))
    named = rf"process {os.getpid()} on {HOST}, folder /data/one, since 2023-11-14T22:13:20\+00:00, epoch 1"
    with running(broker, layout, owner_epoch=1):
        with pytest.raises(NotOwner, match=rf"that is running: {named}\. Two would answer"):
            claim_topics(broker, layout, claim_of("two", "/data/two"))
        with pytest.raises(NotOwner, match="that is running"):
            claim_topics(broker, layout, claim_of("two", "/data/two"), take_over=True)
    with pytest.raises(NotOwner, match=rf"another folder: {named}\. No coordinator runs.*--take-over-topics"):
        claim_topics(broker, layout, claim_of("two", "/data/two"))
    assert claim_topics(broker, layout, claim_of("two", "/data/two"), take_over=True) == 2


def test_coordinator_without_a_claim_is_noticed_by_its_clock_records(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    with running(broker, layout, owner_epoch=None), pytest.raises(NotOwner, match="made no claim"):
        claim_topics(broker, layout, claim_of("one"))
    assert claim_topics(broker, layout, claim_of("one")) == 1


def test_refusal_names_the_owner_that_claimed_concurrently(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of the claims and the wait for a clock record, another owner claims and starts."""

    def claim_first(self: TopicsOwnership, tick_interval_ms: int, *, is_claimed: bool) -> bool:
        monkeypatch.undo()
        claim_topics(broker, layout, claim_of("one"))
        with running(broker, layout, owner_epoch=1):
            return self._is_running(tick_interval_ms, is_claimed=is_claimed)

    monkeypatch.setattr(TopicsOwnership, "_is_running", claim_first)
    with pytest.raises(NotOwner, match=r"is running: process \d+ on .*, folder /data/one, .*, epoch 1\."):
        claim_topics(broker, layout, claim_of("two", "/data/two"))


def test_owner_of_new_topics_has_time_to_write_its_first_clock_record(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests topic is still empty, as when two standbys start at the same moment."""
    monkeypatch.setattr("streaming.service.ownership.owner.SILENCE_MS", 60_000)
    wait_for_record = ClockRecords.wait_for_record

    def starts_its_clock(self: ClockRecords, timeout_s: float) -> bool:
        with ticking(broker, layout, owner_epoch=1):
            return wait_for_record(self, timeout_s)

    claim_topics(broker, layout, claim_of("one"))
    monkeypatch.setattr(ClockRecords, "wait_for_record", starts_its_clock)
    with pytest.raises(NotOwner, match=r"is running: process \d+ on .*, folder /data/one, .*, epoch 1\."):
        claim_topics(broker, layout, claim_of("one", "/data/two"))


def test_claim_on_a_deleted_topic_of_equal_name_is_void(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    claim_topics(broker, layout, claim_of("one", requests_topic_id="deleted"))
    assert claim_topics(broker, layout, claim_of("two", "/data/two")) == 2


def test_imported_state_takes_topics_of_its_old_folder(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    old = claim_of("one")
    moved = Moved("two", "one", exported_at_ms=old.since_ms)
    claim_topics(broker, layout, old)
    with running(broker, layout, owner_epoch=1), pytest.raises(NotOwner, match="that is running"):
        claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved)
    assert claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved) == 2
    with pytest.raises(NotOwner, match=r"another folder: .* folder /data/two"):
        claim_topics(broker, layout, old)
    assert claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved) == 3


def test_imported_state_is_refused_if_its_old_folder_was_used_since(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    old = claim_of("one")
    moved = Moved("two", "one", exported_at_ms=old.since_ms - 1)
    claim_topics(broker, layout, old)
    with pytest.raises(NotOwner, match=r"the old folder was in use after the export: .* Export it again"):
        claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved)
    assert claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved, take_over=True) == 2


def test_deposed_owner_sees_who_took_over(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    with TopicsOwnership(broker.client_config, layout) as first:
        first.claim(claim_of("one"), take_over=False)
        assert first.confirm_successor() is None
        assert claim_topics(broker, layout, claim_of("two", "/data/two"), take_over=True) == 2
        wait_until(lambda: first.find_successor() is not None, "the claim that followed")
        successor = first.find_successor()
        assert successor is not None
        assert (successor.owner_id, successor.epoch) == ("two", 2)


def test_exactly_one_of_several_concurrent_claims_wins(broker: EmbeddedBroker) -> None:
    contenders = 4
    for _ in range(4):
        layout = new_layout()
        prepare_topics(broker.client_config, layout)
        together = threading.Barrier(contenders)

        def contend(number: int, layout: TopicLayout = layout, together: threading.Barrier = together) -> int:
            with TopicsOwnership(broker.client_config, layout) as ownership:
                together.wait()
                try:
                    ownership.claim(claim_of(str(number), f"/data/{number}"), take_over=True)
                    took = True
                except NotOwner:
                    took = False
                together.wait()
                # One that came later may have taken the topics over: then the first one sees that it has.
                return 1 if took and ownership.confirm_successor() is None else 0

        with ThreadPoolExecutor(contenders) as pool:
            assert sum(pool.map(contend, range(contenders))) == 1
