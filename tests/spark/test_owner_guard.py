"""Through the real query and a real owner topic: no task works after a later claim, with rows or without."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from pyspark.errors import StreamingQueryException

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.claims import Claim
from kafka_why.contract.messages import ErrorCode
from streaming.query.executors import WorkerFunction
from streaming.query.owner_guard import LATER_CLAIM, OwnerGuard
from tests.e2e.harness import create_topic
from tests.spark.harness import Bench, answers, make_operator
from tests.spark.log import T0, Log, heartbeat

pytestmark = pytest.mark.e2e


@pytest.fixture
def owner_topic(broker: EmbeddedBroker) -> str:
    topic = f"owner-{uuid4()}"
    create_topic(broker.client_config, topic, 1, {"cleanup.policy": "compact"})
    return topic


def claim(broker: EmbeddedBroker, topic: str, epoch: int) -> None:
    """Append a claim."""
    claimed = Claim(
        epoch=epoch,
        claim_id=str(uuid4()),
        owner_id="one",
        requests_topic_id="topic-id",
        host="here",
        pid=epoch,
        folder="/data",
        since_ms=0,
        tick_interval_ms=100,
    )
    producer = kafka_clients.producer(broker.client_config)
    value = msgspec.json.encode(claimed)
    producer.send(topic, key=claimed.claim_id.encode(), value=value, partition=0).get(timeout=30)
    producer.close()


@pytest.mark.parametrize("has_rows", [True, False])
def test_no_task_works_after_a_later_claim(
    make_bench: Callable[..., Bench], broker: EmbeddedBroker, owner_topic: str, *, has_rows: bool
) -> None:
    """A batch of clock records alone calls the operator for no shard, but would commit a state: of the number
    that the new owner's batch has, and another one. So the guard fails such a task too.
    """
    claim(broker, owner_topic, 1)
    guard = OwnerGuard(broker.client_config, owner_topic, epoch=1)
    bench = make_bench(operator=WorkerFunction(make_operator(), (guard.check,)))
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run([*records, *log.clock(T0 + 1, T0)])
    asked = log.request(T0 + 2, heartbeat("g", member_id))
    assert answers(bench.run([asked]))[asked.id]["error_code"] == ErrorCode.NONE
    written, files = len(bench.written), state_files(bench)

    claim(broker, owner_topic, 2)
    more = [log.request(T0 + 3, heartbeat("g", member_id))] if has_rows else []
    with pytest.raises(StreamingQueryException, match=f"{LATER_CLAIM}2: process 2 on here"):
        bench.run([*more, *log.clock(T0 + 4, T0 + 2)])
    assert len(bench.written) == written
    assert state_files(bench) == files
    bench.query = None


def state_files(bench: Bench) -> set[Path]:
    return set((bench.folder / "spark" / "state" / "0" / "0").glob("*.changelog"))
