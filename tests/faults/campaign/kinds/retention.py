"""Retention deletes requests that no batch has read: the coordinator refuses to go on without them."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click
from kafka import TopicPartition

from clients.coordinator_client import CoordinatorClient
from connections import kafka_clients
from connections.client_config import ClientConfig
from records.layout import TopicLayout
from streaming.service.retention import DAY_MS
from streaming.service.topics import wanted_settings
from tests.campaigns.fault import Fault, FaultOutcome
from tests.campaigns.keeper import Keeper
from tests.campaigns.stage import START_TIMEOUT_S
from tests.e2e.harness import QUICK_JAVA, create_topic, stable_member, wait_until
from tests.faults.campaign.judge.log_start import LogStart, lost_s
from tests.faults.campaign.judge.losses import Ended, Refusal
from tests.faults.campaign.judge.topics import read, unpack
from tests.faults.campaign.kinds.own_coordinator import OwnCoordinator, Readiness
from tests.faults.campaign.load.committing import Committing
from tests.faults.campaign.stage import FaultStage, MeasuredLoss

PARTITIONS = 3
"""Of the requests topic."""
OPTIONS = (
    *("--request-partitions", str(PARTITIONS), "--reply-partitions", "4"),
    *("-c", "group.initial.rebalance.delay.ms=0"),
    *("--spark-conf", f"spark.driver.extraJavaOptions={QUICK_JAVA}"),
)
END_TIMEOUT_S = 120.0
GROWN = 1_000
"""So many records more than a batch has handled: more than the clients append meanwhile."""
UNREAD, LEFT = 20, 5
"""So many requests are appended while no coordinator runs, and so many of them are left."""


def eat_requests(stage: FaultStage, random: Random) -> FaultOutcome:
    """Of topics and a checkpoint of its own, because a coordinator that lost requests must not go on."""
    with ExitStack() as stack:
        own = OwnCoordinator(stage, stack, f"eaten-{random.getrandbits(32)}", "--no-gateway")
        keeper, layout = own.keeper, own.layout
        client = stack.enter_context(
            CoordinatorClient(stage.client_config, layout, client_id="eaten", request_timeout_ms=120_000)
        )
        member = stable_member(client, "g")
        with keeper.held_down():
            for _ in range(UNREAD):
                client.heartbeat("g", generation_id=1, member_id=member.member_id)
            eat(stage.servers, layout.requests_topic, random)
        answered = answered_requests(stage, layout)
        wait_until(lambda: is_refused(keeper, own.folder), "a refusal", START_TIMEOUT_S)
        assert answered_requests(stage, layout) == answered, "requests behind the gap were answered"
    return FaultOutcome.REFUSED


def eat(servers: str, topic: str, random: Random) -> None:
    """Delete all records but the last few, as retention does."""
    partition = TopicPartition(topic, 0)
    with closing(kafka_clients.reading_consumer(ClientConfig(servers))) as consumer:

        def are_appended() -> bool:
            return bool(consumer.end_offsets([partition])[partition] > UNREAD)

        wait_until(are_appended, "the requests")
        end = consumer.end_offsets([partition])[partition]
    with closing(kafka_clients.admin(ClientConfig(servers))) as admin:
        admin.delete_records({partition: end - random.randint(1, 3)}, timeout_ms=30_000)


def is_refused(keeper: Keeper, folder: Path) -> bool:
    said = keeper.log + "".join(path.read_text() for path in folder.glob("data/coordinator/status.json"))
    return "deleted" in said


def answered_requests(stage: FaultStage, layout: TopicLayout) -> set[str]:
    """The ids of the requests that were answered, early or by the query. The mark of a start has no value."""
    records = read(stage.servers, layout.responses_topic)
    values = [value for record in records if record.value for value in unpack(record.value)]
    return {json.loads(value)["request"] for value in values}


@dataclass(frozen=True)
class RequestsLost:
    """Requests disappear under load before a batch has handled them. The coordinator must acknowledge nothing
    more, end, and refuse to start again.

    `lose` deletes them, again and again until the coordinator has ended if `is_repeated`. `mend` undoes what
    would refuse the next start by itself. No batch runs during the deletion if `is_behind`; None leaves that
    to chance. The coordinator names one of `reasons`.
    """

    lose: Callable[[OwnCoordinator, Random], None]
    reasons: tuple[str, ...]
    mend: Callable[[OwnCoordinator], None] = lambda _: None
    is_repeated: bool = False
    is_behind: bool | None = None

    def __call__(self, stage: FaultStage, random: Random) -> FaultOutcome:
        at_ms = int(time.time() * 1000)
        with ExitStack() as stack:
            own = OwnCoordinator(stage, stack, f"lost-{random.getrandbits(32)}", *OPTIONS)
            load = stack.enter_context(Committing(own.ready["gateway"], random))
            log = stack.enter_context(LogStart(stage.servers, own.layout.requests_topic, PARTITIONS))
            readiness = Readiness(stack, own.ready["metrics"])
            time.sleep(random.uniform(0, 1))  # anywhere in a batch
            self._lose(own, log, random)
            ends = own.end_and_refusal(END_TIMEOUT_S)
            own.keeper.stop()
            loss = own.loss(load.commits, log, at_ms)
        end_s = ends[0].at_s - time.time() + time.monotonic() - loss.lost_s if ends else None
        stage.losses.append(MeasuredLoss(loss.silence_s, end_s))
        said = [Ended(end.exit_code, end.said) for end in ends]
        refusal = Refusal(said, self.reasons, readiness.statuses, at_ms)
        verdicts = [*loss.judge(), *refusal.judge()]
        for verdict in verdicts:
            click.echo(f"  {verdict.sentence}", err=True)
        stage.verdicts += verdicts
        own.delete_topics()
        return FaultOutcome.WENT_ON if verdicts else FaultOutcome.REFUSED

    def _lose(self, own: OwnCoordinator, log: LogStart, random: Random) -> None:
        """Delete until it shows: while no batch runs, or until the coordinator has ended."""
        is_behind = random.random() < 0.5 if self.is_behind is None else self.is_behind
        with own.jvm_standing_still() if is_behind else nullcontext():
            time.sleep(random.uniform(0.3, 1.5) if is_behind else 0)
            self.lose(own, random)
            give_up_s = time.monotonic() + END_TIMEOUT_S
            while time.monotonic() < give_up_s and not own.has_ended:
                if is_behind and lost_s(log.looks, own.handled_ends()) is not None:
                    break
                time.sleep(0.1)
                if self.is_repeated:
                    self.lose(own, random)
            self.mend(own)
            time.sleep(random.uniform(0, 3) if is_behind else 0)


def delete_records(own: OwnCoordinator, random: Random) -> None:
    """To the end of some partitions, or of all."""
    chosen = random.sample(range(PARTITIONS), random.randint(1, PARTITIONS))
    topic = own.layout.requests_topic
    ends = {TopicPartition(topic, partition): -1 for partition in chosen}
    with closing(kafka_clients.admin(own.client_config)) as admin:
        admin.delete_records(ends, timeout_ms=30_000)


def delete_topic(own: OwnCoordinator, _: Random) -> None:
    with closing(kafka_clients.admin(own.client_config)) as admin:
        admin.delete_topics([own.layout.requests_topic])


def remake_topic(own: OwnCoordinator, random: Random) -> None:
    """Delete the topic, and make it with the same partitions and settings at once."""
    delete_topic(own, random)
    topic = own.layout.requests_topic
    _, settings = wanted_settings(own.layout)[topic]
    create_topic(own.client_config, topic, PARTITIONS, dict(settings))


def remake_grown_topic(own: OwnCoordinator, random: Random) -> None:
    """The new topic has more records than the old one when the coordinator looks at it."""
    with own.standing_still():
        longest = max(own.handled_ends().values(), default=0) + GROWN
        remake_topic(own, random)
        with closing(kafka_clients.producer(own.client_config)) as producer:
            for number in range(longest * PARTITIONS):
                producer.send(
                    own.layout.requests_topic, key=b"grown", value=b"{}", partition=number % PARTITIONS
                )
            producer.flush(60)


def shorten_time(own: OwnCoordinator, _: Random) -> None:
    """Deletion by time, a moment after the append."""
    own.alter_requests_topic({"segment.ms": "50", "retention.ms": "1"})


def shorten_size(own: OwnCoordinator, _: Random) -> None:
    """Deletion by size: of all segments but the one that grows."""
    own.alter_requests_topic({"segment.ms": "50", "retention.bytes": "0"})


def restore_retention(own: OwnCoordinator) -> None:
    """The settings with which the coordinator made the topic."""
    _, settings = wanted_settings(own.layout)[own.layout.requests_topic]
    kept = {name: settings[name] for name in ("retention.ms", "retention.bytes")}
    own.alter_requests_topic({"segment.ms": str(DAY_MS), **kept})


_DELETED = ("were deleted before they were handled",)
_ANOTHER = ("belongs to another topic", "does not exist any more")
RETENTION = (Fault("retention ate unread requests", 0.3, eat_requests),)
LOST_REQUESTS = tuple(
    Fault(name, 0.3, hit)
    for name, hit in {
        "requests deleted under load": RequestsLost(delete_records, _DELETED, is_repeated=True),
        "requests topic deleted under load": RequestsLost(delete_topic, _ANOTHER),
        "requests topic made again under load": RequestsLost(remake_topic, _ANOTHER),
        "requests topic made again, and grown": RequestsLost(remake_grown_topic, _ANOTHER, is_behind=False),
        "retention by time under load": RequestsLost(shorten_time, _DELETED, restore_retention),
        "retention by size under load": RequestsLost(shorten_size, _DELETED, restore_retention),
    }.items()
)
