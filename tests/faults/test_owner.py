"""Whose the topics are: claims on a real broker, and coordinators in processes of their own.

Two coordinators on the same topics with different folders would answer every request twice, and differently.
"""

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from checkpoints.metadata import Moved
from clients.coordinator_client import CoordinatorClient, layout_on
from embedded.broker import EmbeddedBroker
from records.claims import Claim
from records.layout import TopicLayout
from records.pack import unpack
from state.errors import ErrorCode
from state.kafka.history import EntryType
from streaming.service.clock.ticker import Ticker
from streaming.service.ownership.owner import ClockRecords, NotOwner, Ownership
from streaming.service.status import Phase, read_status
from streaming.service.topics import prepare_topics
from tests.e2e.gateway_clients import PythonMember, consume, produce, share
from tests.e2e.harness import (
    START_TIMEOUT_S,
    create_topic,
    history_of,
    new_layout,
    querys_answers,
    settle,
    stable_member,
    starts,
    wait_until,
)
from tests.harness.run_command import Run, hold, run

pytestmark = pytest.mark.e2e

TICK_INTERVAL_MS = 50
TOPIC_ID = "topic-id"
HOST = socket.gethostname()
NOT_OWNER = 78
RECORDS = 40


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
    """Claim the topics, for good; the epoch."""
    with Ownership(broker.client_config, layout) as ownership:
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
    """A coordinator runs, by its clock records. One that is late on a busy machine is waited for."""
    with pytest.MonkeyPatch.context() as patch, ticking(broker, layout, owner_epoch):
        patch.setattr("streaming.service.ownership.owner.SILENCE_MS", 60_000)
        yield


def test_same_folder_takes_its_topics_again_without_waiting(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    """As after SIGKILL: who holds the folder's lock need not ask whether the other one runs."""
    assert claim_topics(broker, layout, claim_of("one")) == 1
    with running(broker, layout, owner_epoch=1):
        assert claim_topics(broker, layout, claim_of("one")) == 2


def test_same_state_on_another_machine_is_refused_while_the_first_runs(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    """A copy of the folder: its lock says nothing."""
    claim_topics(broker, layout, claim_of("one"))
    with running(broker, layout, owner_epoch=1), pytest.raises(NotOwner, match="that is running"):
        claim_topics(broker, layout, claim_of("one", host="another"))
    assert claim_topics(broker, layout, claim_of("one", host="another")) == 2


def test_other_folder_is_refused_and_told_whose_the_topics_are(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
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


def test_refusal_names_the_owner_that_made_its_claim_meanwhile(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading of the claims and the wait for a clock record, another one claims and starts."""

    def claim_first(self: Ownership, tick_interval_ms: int, *, is_claimed: bool) -> bool:
        monkeypatch.undo()
        claim_topics(broker, layout, claim_of("one"))
        with running(broker, layout, owner_epoch=1):
            return self._is_running(tick_interval_ms, is_claimed=is_claimed)

    monkeypatch.setattr(Ownership, "_is_running", claim_first)
    with pytest.raises(NotOwner, match=r"is running: process \d+ on .*, folder /data/one, .*, epoch 1\."):
        claim_topics(broker, layout, claim_of("two", "/data/two"))


def test_who_has_claimed_new_topics_has_time_to_start_its_clock(
    broker: EmbeddedBroker, layout: TopicLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic of requests is still empty. Two standbys that start at the same moment come to this."""
    monkeypatch.setattr("streaming.service.ownership.owner.SILENCE_MS", 60_000)
    come_within = ClockRecords.come_within

    def starts_its_clock(self: ClockRecords, timeout_s: float) -> bool:
        with ticking(broker, layout, owner_epoch=1):
            return come_within(self, timeout_s)

    claim_topics(broker, layout, claim_of("one"))
    monkeypatch.setattr(ClockRecords, "come_within", starts_its_clock)
    with pytest.raises(NotOwner, match=r"is running: process \d+ on .*, folder /data/one, .*, epoch 1\."):
        claim_topics(broker, layout, claim_of("one", "/data/two"))


def test_claim_on_an_earlier_topic_of_that_name_holds_no_longer(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    claim_topics(broker, layout, claim_of("one", requests_topic_id="deleted"))
    assert claim_topics(broker, layout, claim_of("two", "/data/two")) == 2


def test_imported_state_takes_the_topics_of_its_old_folder_which_then_is_another(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    old = claim_of("one")
    moved = Moved("two", "one", exported_at_ms=old.since_ms)
    claim_topics(broker, layout, old)
    with running(broker, layout, owner_epoch=1), pytest.raises(NotOwner, match="that is running"):
        claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved)
    assert claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved) == 2
    with pytest.raises(NotOwner, match=r"another folder: .* folder /data/two"):
        claim_topics(broker, layout, old)
    assert claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved) == 3


def test_imported_state_is_refused_if_its_old_folder_was_used_after_the_export(
    broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    old = claim_of("one")
    moved = Moved("two", "one", exported_at_ms=old.since_ms - 1)
    claim_topics(broker, layout, old)
    with pytest.raises(NotOwner, match=r"the old folder was in use after the export: .* Export it again"):
        claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved)
    assert claim_topics(broker, layout, claim_of("two", "/data/two"), moved=moved, take_over=True) == 2


def test_owner_sees_who_has_taken_its_place(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    with Ownership(broker.client_config, layout) as first:
        first.claim(claim_of("one"), take_over=False)
        assert first.confirm_lost() is None
        assert claim_topics(broker, layout, claim_of("two", "/data/two"), take_over=True) == 2
        wait_until(lambda: first.lost() is not None, "the claim that followed")
        successor = first.lost()
        assert successor is not None
        assert (successor.owner_id, successor.epoch) == ("two", 2)


def test_of_several_that_claim_at_the_same_moment_exactly_one_goes_on(broker: EmbeddedBroker) -> None:
    contenders = 4
    for _ in range(4):
        layout = new_layout()
        prepare_topics(broker.client_config, layout)
        together = threading.Barrier(contenders)

        def contend(number: int, layout: TopicLayout = layout, together: threading.Barrier = together) -> int:
            with Ownership(broker.client_config, layout) as ownership:
                together.wait()
                try:
                    ownership.claim(claim_of(str(number), f"/data/{number}"), take_over=True)
                    took = True
                except NotOwner:
                    took = False
                together.wait()
                # One that came later may have taken the topics over: then the first one sees that it has.
                return 1 if took and ownership.confirm_lost() is None else 0

        with ThreadPoolExecutor(contenders) as pool:
            assert sum(pool.map(contend, range(contenders))) == 1


@pytest.mark.timeout(600)
def test_second_coordinator_is_refused_and_one_that_lost_its_topics_stops(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Two start at the same moment, one goes on; its members see nothing of those that are refused. Then its
    process hangs, while its JVM goes on, and a new folder takes the topics over.
    """
    prefix = f"test-{uuid4()}"
    with ExitStack() as stack:
        one, two = (stack.enter_context(start(broker, tmp_path, prefix, name)) for name in ("one", "two"))
        wait_until(lambda: ended(one) != ended(two), "the end of one of them", START_TIMEOUT_S)
        winner, loser = (two, one) if ended(one) else (one, two)
        check_refused(loser, winner)
        gateway = winner.ready()["gateway"]
        layout = layout_on(broker.client_config, prefix)
        check_members_notice_nothing(stack, broker, tmp_path, gateway, layout, winner)
        client = stack.enter_context(
            CoordinatorClient(broker.client_config, layout, client_id="c", request_timeout_ms=60_000)
        )
        check_loses_its_topics(broker, tmp_path, layout, winner, client)


def start(
    broker: EmbeddedBroker, tmp_path: Path, prefix: str, name: str, *more: str
) -> AbstractContextManager[Run]:
    servers = ("--bootstrap-servers", broker.bootstrap_servers, "--prefix", prefix)
    settings = ("-c", "group.initial.rebalance.delay.ms=0")
    return run(tmp_path, "--json", "--data-dir", str(tmp_path / name), *servers, *settings, *more)


def prefix_of(layout: TopicLayout) -> str:
    return layout.requests_topic.removesuffix("-requests")


def ended(process: Run) -> bool:
    return process.process.poll() is not None


def check_refused(refused: Run, owner: Run) -> None:
    """It ends with a sentence that names the owner, and an exit code of its own."""
    assert refused.end() == (NOT_OWNER, ""), refused.stderr
    (said,) = [line for line in refused.stderr.splitlines() if line.startswith("Error: ")]
    assert f"process {owner.pid} on {HOST}, folder {owner.stderr_path.parent}/" in said


def check_members_notice_nothing(
    stack: ExitStack, broker: EmbeddedBroker, tmp_path: Path, gateway: str, layout: TopicLayout, owner: Run
) -> None:
    group_id, topic = f"group-{uuid4()}", f"orders-{uuid4()}"
    create_topic(broker.client_config, topic, 4, {})
    members = [stack.enter_context(closing(PythonMember(gateway, group_id, topic))) for _ in range(2)]
    share(*members)
    produce(gateway, topic, range(RECORDS))
    seen = consume(RECORDS, *members)
    with start(broker, tmp_path, prefix_of(layout), "third", "--take-over-topics") as third:
        check_refused(third, owner)
    produce(gateway, topic, range(RECORDS, 2 * RECORDS))
    seen += consume(RECORDS, *members)
    assert Counter(seen) == Counter(range(2 * RECORDS))  # 80 produced, 80 consumed, none consumed again
    history = history_of(broker.client_config, layout, group_id)
    assert EntryType.MEMBER_REMOVED not in {event.type for event in history}
    assert [entry.owner_epoch for entry in starts(broker.client_config, layout)] == [1]


def check_loses_its_topics(
    broker: EmbeddedBroker, tmp_path: Path, layout: TopicLayout, loser: Run, client: CoordinatorClient
) -> None:
    with hold(loser.pid), start(broker, tmp_path, prefix_of(layout), "third", "--take-over-topics") as owner:
        owner.ready()
        # The JVM of the one that hangs goes on by itself, and reads what is asked now.
        member = stable_member(client, "after-the-takeover")
        for _ in range(20):
            assert member.heartbeat(1) is ErrorCode.NONE
        os.kill(loser.pid, signal.SIGCONT)
        check_stopped(loser, owner)
        assert member.heartbeat(1) is ErrorCode.NONE
        settle(broker.client_config, layout)
        answers = answers_to(broker, layout, "after-the-takeover")
        assert len(answers) == 24
        assert set(answers.values()) == {1}


def check_stopped(loser: Run, owner: Run) -> None:
    code, _ = loser.end()
    assert code == NOT_OWNER, loser.stderr
    said = loser.stderr.splitlines()[-1]
    assert said.startswith(f"Error: the topics have another owner: process {owner.pid} on {HOST}, ")
    folders = list(loser.stderr_path.parent.glob("*/coordinator/status.json"))
    told = [read_status(path) for path in folders]
    (status,) = [one for one in told if "another owner" in one.reason]
    assert (status.phase, status.alarm) == (Phase.STOPPED, None)


def answers_to(broker: EmbeddedBroker, layout: TopicLayout, group_id: str) -> Counter[str]:
    """How often the query answered each request about this group."""
    records = querys_answers(broker.client_config, layout)
    answers = [msgspec.json.decode(encoded) for record in records for encoded in unpack(record.value)]
    return Counter(answer["request"] for answer in answers if answer["group_id"] == group_id)
