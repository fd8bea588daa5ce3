"""The broker's clock is stepped: the real query over a topic whose append times are ours.

A broker's own clock cannot be stepped here. So a topic with message.timestamp.type=CreateTime stands behind
the query's DataFrame (`streaming.query.pipeline.coordinate`). Its two partitions are as of two brokers, and
each has a clock that jumps forth and back by up to two minutes. Its clock records are those of the ticker,
which attests nothing while a clock is more than 5 s apart from its own. The query is stopped in the middle
and started again.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from connections.client_config import ClientConfig
from records.codec import clock_record
from records.layout import TopicLayout
from state.config import CoordinatorConfig
from streaming.query import pipeline
from streaming.query.operator import ConfigEpoch, Operator
from streaming.service.clock.ticker import MAX_SKEW_MS
from tests.campaigns.fault import Fault
from tests.e2e.harness import create_topic, wait_until
from tests.faults.campaign.judge.judging import Case, judge, read_evidence
from tests.faults.campaign.judge.topics import read, unpack
from tests.faults.campaign.stage import FaultStage
from tests.spark.log import NAMESPACE, T0, Log, Record, heartbeat

GROUPS = 12
ROUNDS = 60
ROUND_MS = 1_000
CHANCE = 0.1
"""Of a step in each round."""
GREATEST_STEP_MS = 120_000
PARTITIONS = {"requests": 2, "responses": 4}
TOPICS = ("requests", "responses", "groups", "offsets", "events", "dead-letters")
HANDLED_TIMEOUT_S = 120.0


def step_clock(stage: FaultStage, random: Random) -> None:
    prefix = f"stepped-{random.getrandbits(32)}"
    layout = TopicLayout.named(prefix, request_partitions=2, reply_partitions=4)
    for name in TOPICS:
        # The log's times are long ago, so retention would eat it.
        settings = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        create_topic(stage.client_config, f"{prefix}-{name}", PARTITIONS.get(name, 1), settings)
    records = list(stepped_log(random))
    half = len(records) // 2
    checkpoint = stage.folder / prefix
    asked = 0
    for part in (records[:half], records[half:]):
        append(stage.servers, layout.requests_topic, part)
        asked += sum(record.key is not None for record in part)
        query = start(stage.spark(), stage.servers, layout, checkpoint)
        try:
            _wait_for_answers(stage, query, layout, asked)
        finally:
            query.stop()
    case = Case(prefix, "orders")
    stage.verdicts += judge(read_evidence(stage.servers, case), case)


def _wait_for_answers(stage: FaultStage, query: StreamingQuery, layout: TopicLayout, asked: int) -> None:
    def are_answered() -> bool:
        if query.exception() is not None:
            raise AssertionError(str(query.exception()))
        found = read(stage.servers, layout.responses_topic)
        answered = {json.loads(answer)["request"] for r in found for answer in unpack(r.value or b"")}
        return len(answered) >= asked  # a batch that ran again has answers that stand there twice

    wait_until(are_answered, "the answers under a stepped clock", HANDLED_TIMEOUT_S)


def stepped_log(random: Random) -> Iterator[Record]:
    """Groups of one member that heartbeat each second. Some fall silent, and the partitions' clocks jump."""
    log = Log()
    members: dict[str, str] = {}
    for number in range(GROUPS):
        records, members[f"group-{number}"] = log.stable_member(T0, f"group-{number}")
        yield from records
    silent = {group: random.randrange(ROUNDS) for group in random.sample(sorted(members), GROUPS // 3)}
    steps_ms = [0] * PARTITIONS["requests"]
    attested_ms = 0
    for number in range(ROUNDS):
        now_ms = T0 + (number + 1) * ROUND_MS
        if random.random() < CHANCE:
            step_ms = random.choice((0, random.randint(-GREATEST_STEP_MS, GREATEST_STEP_MS)))
            steps_ms[random.randrange(len(steps_ms))] = step_ms
        for partition, step_ms in enumerate(steps_ms):
            yield log.append(now_ms + step_ms, None, clock_record(attested_ms), partition)
        if all(abs(step_ms) <= MAX_SKEW_MS for step_ms in steps_ms):
            attested_ms = max(attested_ms, now_ms + min(steps_ms))
        for group, member_id in members.items():
            if number < silent.get(group, ROUNDS):
                record = log.request(0, heartbeat(group, member_id))
                yield record._replace(at_ms=now_ms + steps_ms[record.partition])


def append(servers: str, topic: str, records: Sequence[Record]) -> None:
    """Append records with their own times."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
    for record in records:
        producer.produce(topic, record.value, record.key, partition=record.partition, timestamp=record.at_ms)
        producer.poll(0)
    assert producer.flush(60) == 0


def start(spark: SparkSession, servers: str, layout: TopicLayout, checkpoint: Path) -> StreamingQuery:
    """The coordinator's query on these topics."""
    config = CoordinatorConfig(group_initial_rebalance_delay_ms=0, member_id_namespace=NAMESPACE)
    operator = Operator(layout, (ConfigEpoch(0, config),))
    return pipeline.start(spark, ClientConfig(servers), str(checkpoint / "spark"), operator)


CLOCK = (Fault("broker's clock stepped", 0.5, step_clock),)
