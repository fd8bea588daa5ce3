"""A minimal client for measurements: raw records in, raw records out, with the least possible cost."""

import time
from collections.abc import Iterator
from itertools import count

import msgspec
from kafka import TopicPartition

from records import kafka_clients
from records.layout import TopicLayout
from records.partitioner import partition_of
from records.reader import TopicReader
from state.kafka.requests import AnyAnswered

ANSWER_TIMEOUT_S = 300.0

_encoder = msgspec.json.Encoder()


class Answer(msgspec.Struct):
    """The fields of a response that the measurements read."""

    correlation_id: str
    error_code: int = 0
    member_id: str = ""
    generation_id: int = -1


_decoder = msgspec.json.Decoder(Answer)


class Asker:
    """Sends requests and waits for responses on one reply partition."""

    REPLY_PARTITION = 0

    def __init__(self, bootstrap_servers: str, layout: TopicLayout) -> None:
        self._layout = layout
        self._ids = count()
        self._producer = kafka_clients.producer(bootstrap_servers)
        self._reader = TopicReader(bootstrap_servers, fetch_max_wait_ms=5)
        self._reader.start(end=[TopicPartition(layout.responses_topic, self.REPLY_PARTITION)])

    def close(self) -> None:
        self._producer.close()
        self._reader.close()

    def next_id(self) -> str:
        return str(next(self._ids))

    def send(self, request: AnyAnswered) -> float:
        """Append a request and wait for the broker's acknowledgement. Return the append time in seconds."""
        return float(self.send_nowait(request).get(timeout=30).timestamp) / 1000

    def send_nowait(self, request: AnyAnswered):  # type: ignore[no-untyped-def]
        partition = partition_of(request.group_id, self._layout.request_partitions)
        return self._producer.send(
            self._layout.requests_topic,
            key=request.group_id.encode(),
            value=_encoder.encode(request),
            partition=partition,
        )

    def flush(self) -> None:
        self._producer.flush()

    def answers(self) -> Iterator[tuple[Answer, float]]:
        """Yield responses as they arrive, each with its arrival time in seconds."""
        give_up = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < give_up:
            records = self._reader.poll(timeout_ms=200)
            here = time.time()
            for record in records:
                yield _decoder.decode(record.value), here
        raise TimeoutError(f"no answer within {ANSWER_TIMEOUT_S:.0f} s")

    def wait(self, correlation_ids: set[str]) -> dict[str, tuple[Answer, float]]:
        """Wait for the responses to all of these requests."""
        found: dict[str, tuple[Answer, float]] = {}
        for answer, here in self.answers():
            if answer.correlation_id in correlation_ids:
                found[answer.correlation_id] = (answer, here)
                if len(found) == len(correlation_ids):
                    break
        return found

    def ask(self, request: AnyAnswered) -> tuple[Answer, float]:
        """Send one request and wait for its response. Return the response and the latency in seconds."""
        began = time.perf_counter()
        self.send_nowait(request)
        answer, _ = self.wait({request.correlation_id})[request.correlation_id]
        return answer, time.perf_counter() - began
