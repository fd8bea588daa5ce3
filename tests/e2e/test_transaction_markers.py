"""What a real broker does for a partition that takes part in a transaction and gets no data: decision 23.

The coordinator leans on these facts. A version of Kafka that changes one of them fails here. The ends of a
transaction that need a broker of their own are in tests/faults/test_transaction_markers.py.
"""

from collections.abc import Iterator

import pytest

from embedded.broker import EmbeddedBroker
from streaming.service.transactions.pending import MarkersReader, read_markers
from tests.harness.transactions import FETCH, LIST_OFFSETS, NONE, TV1, TV2, Producer, Wire, partitions_of
from tests.harness.witness import EPOCHS_LATER, Witness

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

INVALID_PRODUCER_EPOCH, PRODUCER_FENCED = 47, 90
PROTOCOLS = pytest.mark.parametrize("protocol", [TV1, TV2])
ENDINGS = pytest.mark.parametrize("commit", [True, False])
_LATEST = -1


@pytest.fixture(scope="module")
def witness(broker: EmbeddedBroker) -> Witness:
    return Witness.on(broker.client_config)


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connection:
        yield connection


def end_of(wire: Wire, topic: str, isolation_level: int = 0) -> int:
    """Return the end of the only partition: the high watermark, or with 1 the last stable offset."""
    answer = wire.ask(
        LIST_OFFSETS,
        5,
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": _LATEST}]}],
    )
    (found,) = answer.topics[0].partitions
    assert found.error_code == NONE
    return int(found.offset)


@PROTOCOLS
@ENDINGS
def test_s1_s3_a_partition_without_data_gets_the_marker_of_a_clients_end(
    witness: Witness, wire: Wire, protocol: int, commit: bool
) -> None:
    producer = witness.joined(wire, protocol)
    began = producer.identity
    assert producer.end(commit=commit) == NONE
    assert witness.the_marker(began) == (EPOCHS_LATER[protocol], commit)


@PROTOCOLS
def test_s1_s3_fencing_writes_an_abort_of_the_next_epoch(witness: Witness, wire: Wire, protocol: int) -> None:
    """TE8: the application is killed, and its successor asks for a producer id."""
    producer = witness.joined(wire, protocol)
    began = producer.identity
    successor = Producer(wire, producer.transactional_id, protocol).init()
    assert witness.the_marker(began) == (1, False)
    assert successor.identity.producer_id == began.producer_id
    assert successor.identity.epoch > began.epoch
    # What the fenced one still sends changes nothing.
    assert producer.end(commit=True) in (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED)
    assert producer.add(witness.topic) in (INVALID_PRODUCER_EPOCH, PRODUCER_FENCED)
    assert len(witness.markers_of(began.producer_id)) == 1


@PROTOCOLS
def test_4_1_markers_of_earlier_transactions_precede_the_position(
    witness: Witness, wire: Wire, protocol: int
) -> None:
    """The end of the partition, read after it joined, separates a producer's transactions."""
    producer = witness.producer(wire, protocol)
    positions = []
    for number in range(10):
        assert producer.add(witness.topic) == NONE
        positions.append(end_of(wire, witness.topic))
        assert producer.end(commit=number % 2 == 0) == NONE
    markers = witness.markers_of(producer.identity.producer_id, 10)
    assert [marker.committed for marker in markers] == [True, False] * 5
    for position, earlier, own in zip(positions[1:], markers, markers[1:], strict=False):
        assert earlier.offset < position <= own.offset


def test_tl4_open_transaction_without_data_holds_no_stable_offset(witness: Witness, wire: Wire) -> None:
    """I4: markers behind it can be read, whatever the isolation level."""
    with Wire(witness.client_config.bootstrap_servers) as other:
        hanging = witness.joined(other, TV2)
        producer = witness.joined(wire, TV2)
        began = producer.identity
        assert producer.end(commit=True) == NONE
        assert witness.the_marker(began) == (1, True)
        assert end_of(wire, witness.topic, 1) == end_of(wire, witness.topic)
        assert hanging.end(commit=False) == NONE


@ENDINGS
@pytest.mark.parametrize("is_before", [True, False])
def test_s2_a_partition_may_be_added_in_a_transaction_of_tv2(
    witness: Witness, wire: Wire, is_before: bool, commit: bool
) -> None:
    """AddPartitionsToTxn v3 before the first Produce v12, or between two of them; EndTxn v5 works."""
    producer = witness.producer(wire, TV2)
    began = producer.identity
    steps = [lambda: producer.add(witness.topic), lambda: producer.produce(witness.data)]
    for step in [*(steps if is_before else reversed(steps)), lambda: producer.produce(witness.data)]:
        assert step() == NONE
    assert partitions_of(producer.described().topics) == {(witness.topic, 0), (witness.data, 0)}
    assert producer.end(commit=commit) == NONE
    assert witness.the_marker(began) == (1, commit)
    assert producer.identity == (began.producer_id, began.epoch + 1)
    # The next transaction goes on with the epoch of the answer.
    assert producer.add(witness.topic) == NONE
    assert producer.produce(witness.data) == NONE
    assert producer.end(commit=True) == NONE
    assert [m.producer_epoch - began.epoch for m in witness.markers_of(began.producer_id, 2)] == [1, 2]


def test_s3_an_aborted_empty_transaction_of_tv2_has_no_marker(witness: Witness, wire: Wire) -> None:
    """TE4 to TE6: an abort without an open transaction only makes a new epoch."""
    producer = witness.joined(wire, TV2)
    began = producer.identity
    assert producer.end(commit=True) == NONE
    producer.wait_until("CompleteCommit")
    assert producer.end(commit=False) == NONE
    assert producer.identity.epoch == began.epoch + 2
    assert len(witness.markers_of(began.producer_id)) == 1


def test_s4_raw_fetch_contains_markers(witness: Witness, wire: Wire) -> None:
    """The gateway's codec and the coordinator's reader see the same control records, and skip data."""
    producer = witness.joined(wire, TV2)
    assert producer.produce(witness.topic) == NONE
    assert producer.end(commit=True) == NONE
    witness.markers_of(producer.identity.producer_id)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    answer = wire.ask(
        FETCH,
        12,
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        topics=[{"topic": witness.topic, "partitions": [partition]}],
    )
    (found,) = answer.responses[0].partitions
    raw, next_offset = read_markers(bytes(found.records), 0)
    with MarkersReader(witness.client_config, witness.topic) as reader:
        fetched = reader.fetch(0, 0, 100)
        middle = reader.fetch(0, raw[-1].offset, 100)
        beyond = reader.fetch(0, next_offset + 7, 100)
        at_end = reader.fetch(0, next_offset, 100)
    assert (fetched.markers, fetched.next_offset, fetched.start, fetched.end) == (
        raw,
        next_offset,
        0,
        next_offset,
    )
    assert middle.markers == raw[-1:]
    assert beyond.is_out_of_range
    assert (at_end.markers, at_end.is_out_of_range) == ([], False)
