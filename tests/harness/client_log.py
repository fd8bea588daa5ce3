"""The requests of random clients of all protocols, for a broker in memory that assigns the offsets.

Member ids are derived from request ids, which have the offset of the record. Random logs have other offsets
than the broker. So each request is rewritten with the member ids that earlier requests have got at this
broker.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from random import Random
from typing import NamedTuple

import msgspec

from kafka_why.contract.codec import (
    AnyRequest,
    Unanswered,
    encode,
    is_packed,
    pack,
    pack_key,
    request_id,
    slot_of,
)
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import SettingValue
from kafka_why.partitioner import partition_of
from state.config import CoordinatorConfig
from state.kafka.context import new_member_id
from state.timeline import Row
from tests.harness import consumer_log, mixed_log, random_log, rocketmq_log, transaction_log
from tests.spark.log import NAMESPACE
from tests.spark.recorded_log import NAMES

_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
LONGEST_PAUSE_MS = 70_000

SETTINGS: dict[str, Sequence[SettingValue]] = {
    "group.initial.rebalance.delay.ms": (3_000, 0),
    "group.max.size": (2**31 - 1, 3),
    "offsets.retention.minutes": (10_080, 1),
    "offsets.retention.check.interval.ms": (600_000, 7_000),
    "group.consumer.assignment.interval.ms": (1_000, 0, 15_000),
    "group.consumer.max.size": (2**31 - 1, 3),
    "rocketmq.scan.interval.ms": (10_000, 7_000),
}


class Sent(NamedTuple):
    """A record that a client appends after a pause."""

    pause_ms: int
    partition: int
    key: bytes | None
    value: Callable[[int], bytes | None]
    """Returns the value for the offset that the record gets."""


def random_settings(random: Random) -> dict[str, SettingValue]:
    return {name: random.choice(values) for name, values in SETTINGS.items()}


class ClientLog:
    """The records of a random log of one kind of groups. Some are invalid, and some wait for views."""

    def __init__(self, random: Random, layout: TopicLayout, config: CoordinatorConfig, length: int) -> None:
        self._random = random
        self._layout = layout
        self._length = length
        self._seed = random.randrange(2**32)
        self._config = config
        self._new_ids: dict[bytes, bytes] = {}
        self._invalid_share = random.choice((0.0, 0.05, 0.2))
        self._waiting_share = random.choice((0.0, 0.1))

    def records(self) -> Iterator[Sent]:
        """Yield the records in the order of time."""
        at_ms = None
        for record, group in groupby(self._rows(), lambda row: row.request_id.partition("#")[0]):
            rows = list(group)
            pause_ms = 0 if at_ms is None else min(rows[0].at_ms - at_ms, LONGEST_PAUSE_MS)
            at_ms = rows[0].at_ms
            yield from self._maybe_invalid(rows[0].request)
            yield self._sent(pause_ms, record, rows)

    def _rows(self) -> Sequence[Row]:
        kind = self._random.choice(_KINDS)
        rows = kind(self._seed, self._length, self._config)
        # Packs of a random log have no other record between their requests in their own partition.
        return sorted(rows, key=lambda row: (row.at_ms, row.request_id.rsplit("-", 1)[0]))

    def _sent(self, pause_ms: int, record: str, rows: Sequence[Row]) -> Sent:
        requests = [self._addressed(row.request) for row in rows]
        group_id = requests[0].group_id
        partition = partition_of(group_id, self._layout.request_partitions)
        if not is_packed(rows[0].request_id):
            return Sent(
                pause_ms,
                partition,
                group_id.encode(),
                lambda offset: self._rewritten(requests, rows, partition, offset)[0],
            )
        return Sent(
            pause_ms,
            partition,
            pack_key(slot_of(group_id)),
            lambda offset: pack(self._rewritten(requests, rows, partition, offset)),
        )

    def _addressed(self, request: AnyRequest) -> AnyRequest:
        changes: dict[str, object] = {"group_id": NAMES[request.group_id]}
        if not isinstance(request, Unanswered):
            changes["reply_partition"] = self._random.randrange(self._layout.reply_partitions)
            if self._random.random() < self._waiting_share:
                changes["waits_for_views"] = True
        return msgspec.structs.replace(request, **changes)

    def _rewritten(
        self, requests: Sequence[AnyRequest], rows: Sequence[Row], partition: int, offset: int
    ) -> list[bytes]:
        record = request_id(self._layout.requests_topic, partition, offset)
        values = []
        for n, (request, row) in enumerate(zip(requests, rows, strict=True)):
            new = f"{record}#{n}" if is_packed(row.request_id) else record
            self._new_ids[_uuid(row.request_id)] = _uuid(new)
            values.append(_UUID.sub(lambda match: self._new_ids.get(match[0], match[0]), encode(request)))
        return values

    def _maybe_invalid(self, like: AnyRequest) -> Iterator[Sent]:
        random, layout = self._random, self._layout
        if random.random() >= self._invalid_share:
            return
        request = self._addressed(like)
        value, key = encode(request), request.group_id.encode()
        partition = partition_of(request.group_id, layout.request_partitions)
        odd: tuple[tuple[bytes | None, bytes | None], ...] = (
            (key, b"{"),
            (key, None),
            (None, value),
            (b"another", value),
            (key, value.replace(b'"type":"', b'"type":"No')),
            (key, value.replace(b'"version":1', b'"version":99')),
            (key, value.replace(b'"reply_partition":', b'"reply_partition":9')),
            (key, value.replace(b'"correlation_id":"', b'"correlation_id":"' + b"long" * 1_000)),
            (b"1", pack([value, value])),
            (pack_key(slot_of(request.group_id)), pack([b"{", value, b""])),
            (None, b'{"type":"Clock","time_ms":-1}'),
        )
        key_, value_ = random.choice(odd)
        if random.random() < 0.2:
            partition = random.randrange(layout.request_partitions)
        yield Sent(0, partition, key_, lambda _: value_)


def _uuid(request: str) -> bytes:
    return new_member_id("", request, NAMESPACE)[1:].encode()


def _classic(seed: int, length: int, config: CoordinatorConfig) -> Sequence[Row]:
    return random_log.realise(random_log.script(seed, length), config, packs=True)


def _consumer(seed: int, length: int, config: CoordinatorConfig) -> Sequence[Row]:
    log = consumer_log.ConsumerLog(seed, config)
    log.play(length)
    return log.rows


def _mixed(seed: int, length: int, config: CoordinatorConfig) -> Sequence[Row]:
    log = mixed_log.MixedLog(seed, config)
    log.play(length)
    return log.rows


def _transactions(seed: int, length: int, config: CoordinatorConfig) -> Sequence[Row]:
    return transaction_log.play(seed, length, config)[0]


def _rocketmq(seed: int, length: int, config: CoordinatorConfig) -> Sequence[Row]:
    return rocketmq_log.realise(seed, length)


_KINDS = (_classic, _classic, _consumer, _mixed, _transactions, _rocketmq)
