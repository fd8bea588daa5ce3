"""A transactional producer whose requests, and their versions, are chosen by the test one by one.

So a test can do what a client library does not: send no data, send a request too late, or leave one out.
`TV1` and `TV2` are the two protocols of transactions (KIP-890): in TV2 a transaction ends with a new epoch.
"""

import socket
import time
import uuid
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka.record.memory_records import MemoryRecordsBuilder

from gateway.wire import codec
from gateway.wire.framing import framed

PRODUCE, FETCH, FIND_COORDINATOR, INIT = 0, 1, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END, TXN_COMMIT = 24, 25, 26, 28
OFFSET_FETCH = 9
NONE, CONCURRENT_TRANSACTIONS, UNSTABLE = 0, 51, 88
TV1, TV2 = 1, 2
NOTHING = -1
"""The offset of a partition without a committed offset."""
_LOADING = (14, 15, 16)
_RETRIABLE = {*_LOADING, CONCURRENT_TRANSACTIONS}
_TIMEOUT_S = 30.0


class Wire:
    """A connection to a broker or a gateway. One request at a time."""

    def __init__(self, bootstrap_servers: str, client_id: str = "by-hand") -> None:
        host, port = bootstrap_servers.split(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._correlation_ids = count(1)
        self._client_id = client_id

    def ask(self, api_key: int, version: int, **body: Any) -> Any:
        """Send a request and return its decoded answer."""
        correlation_id = next(self._correlation_ids)
        message = codec.encode_request(api_key, version, correlation_id, self._client_id, body)
        self._socket.sendall(framed(message))
        answer = self._exactly(int.from_bytes(self._exactly(4), "big"))
        assert int.from_bytes(answer[:4], "big") == correlation_id
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
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("the other side closed the connection")
            data += chunk
        return data


class Identity(NamedTuple):
    """The id and the epoch that identify a producer."""

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

    def init(self) -> Self:
        """Send InitProducerId as a new producer. Retry while an earlier transaction ends."""
        # The first search creates the topic of the transaction coordinators.
        self._ask_until_accepted(
            lambda: self.wire.ask(FIND_COORDINATOR, 3, key=self.transactional_id, key_type=1)
        )
        answer = self._ask_until_accepted(
            lambda: self.wire.ask(
                INIT,
                4,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
        )
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        self._sequences.clear()
        return self

    def add(self, topic: str) -> int:
        """Send AddPartitionsToTxn v3 for a topic's first partition. Return its error code."""

        def ask() -> int:
            answer = self.wire.ask(
                ADD_PARTITIONS,
                3,
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=self.identity.producer_id,
                v3_and_below_producer_epoch=self.identity.epoch,
                v3_and_below_topics=[{"name": topic, "partitions": [0]}],
            )
            (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(result.partition_error_code)

        deadline_s = time.monotonic() + _TIMEOUT_S
        while (error := ask()) == CONCURRENT_TRANSACTIONS and time.monotonic() < deadline_s:
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

    def _ask_until_accepted(self, ask: Callable[[], Any]) -> Any:
        """Retry while the coordinator moves or an earlier transaction ends. Return the answer."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while (answer := ask()).error_code in _RETRIABLE and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert answer.error_code == NONE
        return answer

    def add_offsets(self, group_id: str, version: int = 3) -> int:
        """Send AddOffsetsToTxn, and retry while an earlier transaction ends. Return the error code."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self.wire.ask(ADD_OFFSETS, version, **self._identity_fields(), group_id=group_id)
            if answer.error_code != CONCURRENT_TRANSACTIONS or time.monotonic() > deadline_s:
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
            **self._identity_fields(),
            group_id=group_id,
            topics=[{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            **member,
        )
        (error,) = {p.error_code for topic in answer.topics for p in topic.partitions}
        return int(error)

    def _identity_fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.epoch,
        }


def wait_for(poll: Callable[[], Any], what: str, timeout_s: float = _TIMEOUT_S) -> Any:
    """Wait until `poll` returns something true, and return it."""
    deadline_s = time.monotonic() + timeout_s
    while not (result := poll()):
        assert time.monotonic() < deadline_s, f"in vain: {what}"
        time.sleep(0.02)
    return result


def producer_of(wire: Wire, protocol: int) -> Producer:
    """Return a new producer that may begin a transaction."""
    return Producer(wire, f"app-{uuid.uuid4()}", protocol).init()


def pend(producer: Producer, group_id: str, topic: str, offset: int, partition: int = 0) -> None:
    """Commit an offset in the producer's open transaction, and retry after the errors that Java's client
    retries.

    They occur if the gateway had no answer of the brokers in time, and in TV2 if the producer's last
    transaction has not ended within the gateway's own retries.
    """

    def is_pending() -> bool:
        error = producer.commit_offsets(group_id, {(topic, partition): offset})
        assert error in (NONE, *_RETRIABLE)
        return error == NONE

    if producer.protocol == TV1:
        assert producer.add_offsets(group_id) == NONE
    wait_for(is_pending, "the commit")


def fetched(wire: Wire, group_id: str, topic: str, partition: int = 0, *, stable: bool) -> tuple[int, int]:
    """Return the committed offset of a partition, and its error code."""
    topics = [{"name": topic, "partition_indexes": [partition]}]

    def ask() -> Any:
        """Return the answer, or None if the gateway has given up waiting for a paused coordinator."""
        answer = wire.ask(OFFSET_FETCH, 7, group_id=group_id, topics=topics, require_stable=stable)
        return None if answer.error_code in _LOADING else answer

    answer = wait_for(ask, "the offsets")
    assert answer.error_code == NONE
    (result,) = answer.topics[0].partitions
    return int(result.committed_offset), int(result.error_code)


def stable_offset(wire: Wire, group_id: str, topic: str, partition: int = 0) -> int:
    """Return the committed offset of a partition, once none is pending."""

    def stable_offset_once() -> tuple[int] | None:  # a tuple, because the offset may be 0
        offset, error = fetched(wire, group_id, topic, partition, stable=True)
        assert error in (NONE, UNSTABLE)
        return None if error else (offset,)

    (offset,) = wait_for(stable_offset_once, f"a stable offset of {topic}-{partition} in {group_id}", 60.0)
    return int(offset)
