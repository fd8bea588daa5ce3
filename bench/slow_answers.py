"""The stages in which slow answers lose their time, from the records of a load on the topics.

The first stage ends when the broker appends the request, and stamps it. The second ends when the coordinator
sends the answer to the broker, because the sender stamps the records of the responses topic. The last ends
when the client has the answer.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from msgspec import Struct

from bench.load.load_result import LoadResult, WrongAnswer
from bench.stats import percentile
from kafka_why.contract.codec import is_pack, request_id, unpack
from kafka_why.contract.early_answers import EarlyAnswers
from kafka_why.contract.layout import TopicLayout

SLOW_FACTOR = 10
"""An answer is slow if it takes more than this multiple of the median of its load."""
STAGES = (
    "before the broker appended the request",
    "between that and the sending of the answer to the broker",
    "after that",
)
REPLY_PARTITIONS = (0, 1)  # of the client on the topics, and of the gateway
_TIMEOUT_S = 30.0

Stages = tuple[float, float, float]
"""The seconds that an answer spent in each of STAGES."""


class _Message(Struct):
    """The fields of a request and of a response that are read here."""

    group_id: str = ""
    request: str = ""  # of a response: the id of its request


_decode = msgspec.json.Decoder(_Message).decode


class LoadLog:
    """A reader of the requests and of their first answers since `begin`. All requests are in partition 0."""

    def __init__(self, servers: str, prefix: str) -> None:
        layout = TopicLayout.named(prefix)
        self._requests = TopicPartition(layout.requests_topic, 0)
        self._partitions = [
            self._requests,
            *(TopicPartition(layout.responses_topic, partition) for partition in REPLY_PARTITIONS),
        ]
        self._began_s = 0.0
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "log_level": 4,
            }
        )

    def close(self) -> None:
        self._consumer.close()

    def begin(self) -> None:
        """Remember the ends of the topics, and the time. The load must begin immediately after this."""
        for partition in self._partitions:
            _, partition.offset = self._consumer.get_watermark_offsets(partition, timeout=_TIMEOUT_S)
        self._began_s = time.time()

    def slow_answers(self, outcome: LoadResult, pipe_of: Mapping[str, int]) -> list[Stages]:
        """Return the stages of the slow answers of the open loop that began after `begin`.

        `pipe_of` has the index of the connection of each group. Raises ValueError as `slow_answers` does.
        """
        stamps_s: list[list[tuple[float, float]]] = [[] for _ in range(max(pipe_of.values()) + 1)]
        for group_id, appended_s, answered_s in self._answered_requests(pipe_of):
            stamps_s[pipe_of[group_id]].append((appended_s, answered_s))
        return slow_answers(outcome, self._began_s, stamps_s)

    def _answered_requests(self, group_ids: Mapping[str, int]) -> Iterator[tuple[str, float, float]]:
        """Yield the group of each request, and the stamps of the request and of its first answer.

        Requests of the coordinator itself get no answer, so they are left out.
        """
        requests: dict[str, tuple[str, float]] = {}
        answered_s: dict[str, float] = {}
        early_answers = EarlyAnswers()
        for message in self._messages():
            stamp_s, value = message.timestamp()[1] / 1e3, message.value() or b""
            headers: Any = message.headers()
            if message.topic() == self._requests.topic:
                offset = message.offset() or 0
                for n, one in enumerate(unpack(value)):
                    id_ = request_id(self._requests.topic, 0, offset, n if is_pack(value) else None)
                    requests[id_] = _decode(one).group_id, stamp_s
            elif early_answers.accepts(message.partition(), headers):
                for one in unpack(value):
                    answered_s.setdefault(_decode(one).request, stamp_s)
        for id_, (group_id, appended_s) in requests.items():
            if group_id in group_ids and id_ in answered_s:
                yield group_id, appended_s, answered_s[id_]

    def _messages(self) -> Iterator[Message]:
        """Yield the records since `begin` until the present end of each partition."""
        self._consumer.assign(self._partitions)
        unread = {(one.topic, one.partition) for one in self._partitions}
        while unread:
            for message in self._consumer.consume(1_000, 0.1):
                if (error := message.error()) is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((message.topic(), message.partition()))
                else:
                    raise WrongAnswer(f"the topics cannot be read: {error}")
        self._consumer.unassign()  # so that it fetches nothing during the next load


def slow_answers(
    outcome: LoadResult, began_s: float, stamps_s: Sequence[Sequence[tuple[float, float]]]
) -> list[Stages]:
    """Return the stages of the slow answers of an open loop that began at `began_s`.

    `stamps_s` has for each connection the stamps of its requests and of their first answers. The connections
    took turns, and each got its answers in order. Raises ValueError if the numbers of requests differ.
    """
    least_s = SLOW_FACTOR * percentile(outcome.latency_s, 0.5)
    # Answers to requests that were due together arrived in the order of their stamps.
    times_s = sorted(zip(outcome.due_s, outcome.latency_s, strict=True))
    slow = []
    for index, of_pipe in enumerate(stamps_s):
        of_requests = zip(times_s[index :: len(stamps_s)], sorted(of_pipe), strict=True)
        for (due_s, latency_s), (appended_s, answered_s) in of_requests:
            if latency_s > least_s:
                sent_s = began_s + due_s
                slow.append((appended_s - sent_s, answered_s - appended_s, sent_s + latency_s - answered_s))
    return slow


def slow_note(answers: int, slow: Sequence[Stages]) -> str:
    """Return how many answers were slow, and in which stages they lost most of their time."""
    if not slow:
        return f"none of {answers:,} answers was slow"
    numbers = Counter(stages.index(max(stages)) for stages in slow)
    by_stage = ", ".join(f"{numbers[index]:,} {stage}" for index, stage in enumerate(STAGES))
    longest = max(slow, key=sum)
    parts = " + ".join(f"{seconds * 1e3:.0f}" for seconds in longest)
    return (
        f"{len(slow):,} of {answers:,} answers were slow, and lost most of their time: {by_stage}. "
        f"The longest took {sum(longest) * 1e3:.0f} ms ({parts})"
    )
