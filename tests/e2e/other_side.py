"""The other side of the topics, for tests of clients: reads requests, writes the answers a test gives."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import msgspec

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import decode_request, is_pack, pack, request_id, unpack
from kafka_why.contract.early_answers import ReplicaId, early_headers, marker_headers
from kafka_why.contract.kafka.requests import AnyAnswered
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import Request
from kafka_why.topic_reader import TopicReader
from streaming.service.topics import prepare_topics

PATIENCE_S = 30.0


class PendingRequest(msgspec.Struct, frozen=True):
    """A request as it is in the log; `at_s` is when the broker appended it. `key` is its record's."""

    request: AnyAnswered
    id: str
    at_s: float
    partition: int
    key: bytes


class OtherSide:
    """Makes a layout's topics, and follows its requests from the start."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        prepare_topics(client_config, layout)
        self._layout = layout
        self._backlog: list[PendingRequest] = []
        self._requests = TopicReader(client_config)
        self._requests.start(beginning=self._requests.partitions_of(layout.requests_topic))
        self._producer = kafka_clients.producer(client_config)

    def next(self) -> PendingRequest:
        return self.next_where(lambda asked: True)

    def next_where(self, wanted: Callable[[PendingRequest], bool]) -> PendingRequest:
        """Return the next request of which `wanted` is true; others before it are left for later calls."""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            for index, asked in enumerate(self._backlog):
                if wanted(asked):
                    return self._backlog.pop(index)
            assert time.monotonic() < give_up_s, "no such request came"
            self._poll()

    def answer(
        self,
        asked: PendingRequest,
        response: type[AnyResponse],
        *,
        early: ReplicaId | None = None,
        **fields: object,
    ) -> None:
        """Answer a request, error code 0 unless `fields` say otherwise. With `early` as this replica."""
        headers = [] if early is None else early_headers(early, int(asked.at_s * 1000))
        self.write(asked.request.reply_partition, _encoded(asked, response, fields), headers)

    def answer_packed(self, several: Sequence[PendingRequest], response: type[AnyResponse]) -> None:
        """Answer requests of one client in one record."""
        (reply_partition,) = {asked.request.reply_partition for asked in several}
        self.write(reply_partition, pack(_encoded(asked, response, {}) for asked in several))

    def mark(self, reply_partition: int, first: ReplicaId) -> None:
        """Append a marker: replicas before `first` are replaced."""
        self.write(reply_partition, None, marker_headers(first))

    def write(
        self, reply_partition: int, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Put any bytes on the responses topic."""
        # An empty key, because kafka-python refuses a record that has neither key nor value.
        self._producer.send(
            self._layout.responses_topic, value, b"", partition=reply_partition, headers=list(headers)
        ).get(30)

    def _poll(self) -> None:
        for record in self._requests.poll(timeout_ms=200):
            place = request_id(record.topic, record.partition, record.offset)
            for number, encoded in enumerate(unpack(record.value)):
                request = decode_request(encoded)
                assert isinstance(request, Request), request
                id_ = f"{place}#{number}" if is_pack(record.value) else place
                self._backlog.append(
                    PendingRequest(request, id_, record.timestamp / 1000, record.partition, record.key)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._requests.close()


def _encoded(asked: PendingRequest, response: type[AnyResponse], fields: Mapping[str, object]) -> bytes:
    given = {
        "group_id": asked.request.group_id,
        "correlation_id": asked.request.correlation_id,
        "request": asked.id,
        "error_code": 0,
    }
    return msgspec.json.encode(response(**{**given, **fields}))  # type: ignore[arg-type]
