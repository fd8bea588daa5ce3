"""A transactional producer that sends each request by hand, in a version that the test chooses.

So a test can do what a client library does not: no data, a request too late, one left out. `TV1` and `TV2`
are the two protocols of transactions (KIP-890): in TV2 a transaction ends with a new epoch.
"""

import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka.record.memory_records import MemoryRecordsBuilder

from gateway.wire import codec
from gateway.wire.framing import framed

PRODUCE, FETCH, LIST_OFFSETS, FIND_COORDINATOR, INIT = 0, 1, 2, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END, TXN_COMMIT, DESCRIBE_TRANSACTIONS = 24, 25, 26, 28, 65
OFFSET_FETCH = 9
NONE, CONCURRENT_TRANSACTIONS, UNSTABLE = 0, 51, 88
TV1, TV2 = 1, 2
NOTHING = -1
"""The offset of a partition without one."""
_LOADING = (14, 15, 16)
_AGAIN = {*_LOADING, CONCURRENT_TRANSACTIONS}
_TIMEOUT_S = 30.0


class Wire:
    """A connection to a broker or a gateway. One request at a time."""

    def __init__(self, bootstrap_servers: str, client_id: str = "by-hand") -> None:
        host, port = bootstrap_servers.split(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._numbers = count(1)
        self._client_id = client_id

    def ask(self, api_key: int, version: int, **body: Any) -> Any:
        """Send a request and return its decoded answer."""
        number = next(self._numbers)
        message = codec.encode_request(api_key, version, number, self._client_id, body)
        self._socket.sendall(framed(message))
        answer = self._exactly(int.from_bytes(self._exactly(4), "big"))
        assert int.from_bytes(answer[:4], "big") == number
        return codec.decode_response(api_key, version, answer)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the other side closed the connection")
            data += more
        return data


class Identity(NamedTuple):
    """What a producer is known by."""

    producer_id: int
    epoch: int


class Producer:
    """A transactional producer. Its requests carry `identity`, which `init` and TV2's `end` change."""

    def __init__(self, wire: Wire, transactional_id: str, protocol: int) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.identity = Identity(-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}

    def init(self, timeout_ms: int = 60_000, *, is_kept: bool = False) -> Self:
        """Send InitProducerId, again while an earlier transaction ends. With `is_kept` it is the same
        producer's next epoch (KIP-360), else that of a new one.
        """
        known = self.identity if is_kept else Identity(-1, -1)
        # The first search makes the topic of the coordinators.
        self._until(lambda: self.wire.ask(FIND_COORDINATOR, 3, key=self.transactional_id, key_type=1))
        answer = self._until(
            lambda: self.wire.ask(
                INIT,
                4,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=known.producer_id,
                producer_epoch=known.epoch,
            )
        )
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()
        return self

    def add(self, topic: str, partition: int = 0, *, waits: bool = True) -> int:
        """Send AddPartitionsToTxn v3 for one partition. Return its error code."""

        def ask() -> int:
            answer = self.wire.ask(
                ADD_PARTITIONS,
                3,
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.identity.producer_id,
                v3_and_below_producer_epoch=self.identity.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": [partition]}],
            )
            (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(result.partition_error_code)

        if not waits:
            return ask()
        give_up_s = time.monotonic() + _TIMEOUT_S
        while (error := ask()) == CONCURRENT_TRANSACTIONS and time.monotonic() < give_up_s:
            time.sleep(0.02)
        return error

    def produce(self, topic: str, value: bytes = b"x", partition: int = 0) -> int:
        """Produce one record in the transaction. Return the error code. TV1 needs `add` before it."""
        sequence = self._sequences.get((topic, partition), 0)
        builder = MemoryRecordsBuilder(
            2,
            0,
            16_384,
            transactional=True,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=sequence,
        )
        builder.append(timestamp=round(time.time() * 1000), key=None, value=value, headers=[])
        builder.close()
        answer = self.wire.ask(
            PRODUCE,
            11 if self.protocol == TV1 else 12,
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                {"name": topic, "partition_data": [{"index": partition, "records": builder.buffer()}]}
            ],
        )
        error = int(answer.responses[0].partition_responses[0].error_code)
        if error == NONE:
            self._sequences[topic, partition] = sequence + 1
        return error

    def end(self, *, commit: bool) -> int:
        """Send EndTxn, v4 in TV1 and v5 in TV2. Return the error code."""
        answer = self.wire.ask(
            END,
            4 if self.protocol == TV1 else 5,
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=commit,
        )
        if answer.error_code == NONE and self.protocol == TV2:
            self.identity = Identity(answer.producer_id, answer.producer_epoch)
            self._sequences.clear()
        return int(answer.error_code)

    def _until(self, ask: Callable[[], Any]) -> Any:
        """Ask again while the coordinator moves, or an earlier transaction ends."""
        give_up_s = time.monotonic() + _TIMEOUT_S
        while (answer := ask()).error_code in _AGAIN and time.monotonic() < give_up_s:
            time.sleep(0.02)
        assert answer.error_code == NONE
        return answer

    def add_offsets(self, group_id: str, version: int = 3) -> int:
        """Send AddOffsetsToTxn, again while an earlier transaction ends. Return the error code."""
        give_up_s = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self.wire.ask(ADD_OFFSETS, version, **self._named(), group_id=group_id)
            if answer.error_code != CONCURRENT_TRANSACTIONS or time.monotonic() > give_up_s:
                return int(answer.error_code)
            time.sleep(0.02)

    def commit_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int], version: int | None = None, **member: Any
    ) -> int:
        """Send TxnOffsetCommit, v3 in TV1 and v5 in TV2. Return the error code of all partitions."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                {"partition_index": partition, "committed_offset": offset, "committed_metadata": ""}
            )
        answer = self.wire.ask(
            TXN_COMMIT,
            version if version is not None else (3 if self.protocol == TV1 else 5),
            **self._named(),
            group_id=group_id,
            topics=[{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            **member,
        )
        (error,) = {p.error_code for topic in answer.topics for p in topic.partitions}
        return int(error)

    def _named(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.epoch,
        }

    def described(self) -> Any:
        answer = self.wire.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.transactional_id])
        (state,) = answer.transaction_states
        return state

    def wait_until(self, *states: str) -> None:
        wait_for(lambda: self.described().transaction_state in states, f"{self.transactional_id}: {states}")


def wait_for(holds: Callable[[], Any], what: str, timeout_s: float = _TIMEOUT_S) -> Any:
    """Wait until `holds` returns something true, and return it."""
    give_up_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < give_up_s, f"in vain: {what}"
        time.sleep(0.02)
    return found


def producer_of(wire: Wire, protocol: int) -> Producer:
    """Return a new producer that may begin a transaction."""
    return Producer(wire, f"app-{uuid.uuid4()}", protocol).init()


def pend(producer: Producer, group_id: str, topic: str, offset: int, partition: int = 0) -> None:
    """Commit an offset in the producer's open transaction, as Java's client does: again after each error that
    is retriable there. That is, where the gateway had no answer of the brokers in time, and in TV2 where the
    producer's transaction before this one has not ended within the gateway's own retries.
    """

    def is_pending() -> bool:
        error = producer.commit_offsets(group_id, {(topic, partition): offset})
        assert error in (NONE, *_AGAIN)
        return error == NONE

    if producer.protocol == TV1:
        assert producer.add_offsets(group_id) == NONE
    wait_for(is_pending, "the commit")


def fetched(wire: Wire, group_id: str, topic: str, partition: int = 0, *, stable: bool) -> tuple[int, int]:
    """Return the committed offset of a partition, and its error code."""
    topics = [{"name": topic, "partition_indexes": [partition]}]

    def answered() -> Any:
        """None where the gateway has given up a coordinator that stands still."""
        answer = wire.ask(OFFSET_FETCH, 7, group_id=group_id, topics=topics, require_stable=stable)
        return None if answer.error_code in _LOADING else answer

    answer = wait_for(answered, "the offsets")
    assert answer.error_code == NONE
    (found,) = answer.topics[0].partitions
    return int(found.committed_offset), int(found.error_code)


def stable_offset(wire: Wire, group_id: str, topic: str, partition: int = 0) -> int:
    """Return the committed offset of a partition, once none is pending."""

    def stable() -> tuple[int] | None:
        offset, error = fetched(wire, group_id, topic, partition, stable=True)
        assert error in (NONE, UNSTABLE)
        return None if error else (offset,)

    (offset,) = wait_for(stable, f"a stable offset of {topic}-{partition} in {group_id}", 60.0)
    return int(offset)


def partitions_of(topics: Iterable[Any]) -> set[tuple[str, int]]:
    return {(topic.topic, partition) for topic in topics for partition in topic.partitions}
