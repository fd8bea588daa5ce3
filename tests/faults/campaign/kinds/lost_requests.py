"""Requests are deleted that no batch has read: the coordinator refuses to continue without them."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from functools import partial
from random import Random

import click
from kafka import TopicPartition

from kafka_why.connections import kafka_clients
from streaming.service.topics import wanted_settings
from tests.campaigns.fault import Fault
from tests.e2e.harness import create_topic
from tests.faults.campaign.judge.log_start import lost_s
from tests.faults.campaign.judge.losses import Refusal
from tests.faults.campaign.kinds.own_coordinator import PARTITIONS, OwnCoordinator
from tests.faults.campaign.stage import FaultStage

END_TIMEOUT_S = 120.0
GROWN = 1_000
"""So many records more than a batch has handled: more than the clients append meanwhile."""
Lose = Callable[[OwnCoordinator, Random], None]


def lose_requests(
    stage: FaultStage, random: Random, *, lose: Lose, reasons: tuple[str, ...], is_behind: bool | None = None
) -> bool:
    """Delete requests under load before a batch has handled them.

    The coordinator must acknowledge nothing more, end with one of `reasons`, and refuse to start again. With
    `is_behind` no batch runs while `lose` deletes the requests. None leaves that to chance.
    """
    at_ms = int(time.time() * 1000)
    with ExitStack() as stack:
        own = OwnCoordinator(stage, stack, random)
        time.sleep(random.uniform(0, 1))  # anywhere in a batch
        _lose(own, random, lose, random.random() < 0.5 if is_behind is None else is_behind)
        ends = own.ends(END_TIMEOUT_S)
        own.process.stop()
        loss = own.loss(at_ms)
    stage.measured["silence"] = loss.silence_s
    if ends:
        stage.measured["end"] = ends[0].at_s - time.time() + time.monotonic() - loss.lost_s
    verdicts = [*loss.judge(), *Refusal(ends, reasons, own.readiness, at_ms).judge()]
    for verdict in verdicts:
        click.echo(f"  {verdict.sentence}", err=True)
    stage.verdicts += verdicts
    own.delete_topics()
    return not verdicts


def _lose(own: OwnCoordinator, random: Random, lose: Lose, is_behind: bool) -> None:
    """Delete until it shows: while no batch runs, or until the coordinator has ended."""
    with own.paused(jvm_alone=True) if is_behind else nullcontext():
        time.sleep(random.uniform(0.3, 1.5) if is_behind else 0)
        lose(own, random)
        give_up_s = time.monotonic() + END_TIMEOUT_S
        while time.monotonic() < give_up_s and not own.process.ends:
            if is_behind and lost_s(own.looks, own.handled_ends()) is not None:
                break
            time.sleep(0.1)
            if lose is delete_records:  # a batch may have handled what was deleted
                lose(own, random)
        time.sleep(random.uniform(0, 3) if is_behind else 0)


def delete_records(own: OwnCoordinator, random: Random) -> None:
    """Delete all records of some partitions, or of all, as retention does."""
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
    """Recreate the topic with more records than the old one before the coordinator polls it."""
    with own.paused():
        longest = max(own.handled_ends().values(), default=0) + GROWN
        remake_topic(own, random)
        with closing(kafka_clients.producer(own.client_config)) as producer:
            for number in range(longest * PARTITIONS):
                producer.send(
                    own.layout.requests_topic, key=b"grown", value=b"{}", partition=number % PARTITIONS
                )
            producer.flush(60)


_another_topic = partial(lose_requests, reasons=("belongs to another topic", "does not exist any more"))
LOST_REQUESTS = (
    Fault(
        "requests deleted under load",
        0.3,
        partial(lose_requests, lose=delete_records, reasons=("were deleted before they were handled",)),
    ),
    Fault("requests topic deleted under load", 0.3, partial(_another_topic, lose=delete_topic)),
    Fault("requests topic made again under load", 0.3, partial(_another_topic, lose=remake_topic)),
    Fault(
        "requests topic made again, and grown",
        0.3,
        partial(_another_topic, lose=remake_grown_topic, is_behind=False),
    ),
)
