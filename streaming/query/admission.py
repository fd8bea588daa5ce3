"""The rows of a shard in the log's order, and the admission of messages: it accepts the requests of a shard's
groups, and refuses other messages with a reason.
"""

import heapq
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple
from zlib import crc32

from msgspec import Struct

from kafka_why.contract.codec import (
    NO_PACKS,
    PACK_SLOTS,
    AnyRequest,
    Reason,
    Refusal,
    decode_request,
    is_pack,
    pack_key,
    refuse,
    refuse_unreadable,
    request_id,
    slot_of,
    unpack,
)
from kafka_why.contract.layout import TopicLayout, excess
from kafka_why.numbers import parse_whole_number
from kafka_why.partitioner import partition_of

# The rows of one shard in the log's order, in bounded memory.
#
# Spark passes a shard's rows in chunks and promises no order: its sort compares only keys, and spilled rows
# come back in any order. So LogOrder collects the rows and sorts them by (partition, offset). Above a limit
# it writes sorted runs to temporary files and merges them.


RUN_MAX_BYTES = 64 * 1024 * 1024
# The memory of a row beside its value, in bytes: the tuple, its numbers, the bytes object, its list entries.
ROW_OVERHEAD_BYTES = 256


class LogRow(NamedTuple):
    """A record of the requests topic. Rows compare in the log's order."""

    partition: int
    offset: int
    at_ms: int  # when the broker appended it
    key: bytes  # b"" for a record without a key
    value: bytes


class LogOrder:
    """A sorter of rows. `add` collects them, and iterating once yields them in order."""

    def __init__(self, run_max_bytes: int = RUN_MAX_BYTES) -> None:
        self._run_max_bytes = run_max_bytes
        self._rows: list[LogRow] = []
        self._bytes = 0
        self._runs: list[IO[bytes]] = []

    def add(self, row: LogRow) -> None:
        self._rows.append(row)
        self._bytes += len(row.key) + len(row.value) + ROW_OVERHEAD_BYTES
        if self._bytes > self._run_max_bytes:
            self._spill()

    def __iter__(self) -> Iterator[LogRow]:
        self._rows.sort()
        if not self._runs:
            yield from self._rows
            return
        try:
            yield from heapq.merge(*(_read(run) for run in self._runs), self._rows)
        finally:
            for run in self._runs:
                run.close()

    def _spill(self) -> None:
        self._rows.sort()
        run = tempfile.TemporaryFile(prefix="group-coordinator-")  # noqa: SIM115 - closed after the merge
        for row in self._rows:
            pickle.dump(tuple(row), run, pickle.HIGHEST_PROTOCOL)
        run.seek(0)
        self._runs.append(run)
        self._rows, self._bytes = [], 0


def _read(run: IO[bytes]) -> Iterator[LogRow]:
    while True:
        try:
            yield LogRow(*pickle.load(run))  # noqa: S301 - this process wrote it
        except EOFError:
            return


# Shards: groups that share one keyed state, because each state that a batch touches costs time.
#
# `partition = murmur2(group id) mod P`, `shard = (partition, crc32(group id) mod k)`. k is a power of two, so
# the slot of a pack (`kafka_why.contract.codec`) decides the shard of all its requests if k is at most
# PACK_SLOTS. With k = MAX_SHARDS nearly every group has its own keyed state. The checkpoint pins P and k.


DEFAULT_SHARDS = 64
MAX_SHARDS = 2**32


def check_shards(shards: int) -> None:
    """Raise ValueError unless a partition may have this number of shards."""
    if shards.bit_count() != 1 or not 1 <= shards <= MAX_SHARDS:
        raise ValueError(f"{shards} is not a power of two from 1 to {MAX_SHARDS}")


def parse_shards(text: str) -> int:
    """Parse a number of shards of a partition. Raises ValueError."""
    shards = parse_whole_number(text)
    check_shards(shards)
    return shards


def shard_of(group_id: str, partition: int, shards: int) -> int:
    """Return the number of a group's shard, counted over all partitions of requests. `shards` is the number
    of shards of a partition.
    """
    return partition * shards + crc32(group_id.encode()) % shards


def takes_packs(shards: int) -> bool:
    """Return True if all requests of a pack are for the same shard."""
    return shards <= PACK_SLOTS


class LogMessage(Struct, frozen=True):
    """A message of the log: a record's value, or message `n` of a pack. `id` is the id of the request."""

    row: LogRow
    n: int | None
    value: bytes
    id: str


@dataclass(frozen=True, slots=True)
class Admission:
    """The admission of messages to one shard."""

    layout: TopicLayout
    partition: int  # the shard's partition of requests
    shards: int  # the number of shards of a partition
    skip: frozenset[str]  # ids of records, or of single requests of packs, to refuse unread

    def messages(self, row: LogRow) -> Iterator[LogMessage]:
        """Yield the messages of a record in their order. A record to skip or a pack that is too large is one
        message.
        """
        record = request_id(self.layout.requests_topic, row.partition, row.offset)
        if not is_pack(row.value) or record in self.skip or len(row.value) > self.layout.request_max_bytes:
            yield LogMessage(row, None, row.value, record)
            return
        for n, value in enumerate(unpack(row.value)):
            yield LogMessage(row, n, value, f"{record}#{n}")

    def admit(self, message: LogMessage, is_known: Callable[[str], bool]) -> AnyRequest | Refusal:
        """Return the request of a message, or its refusal. `is_known` returns True for a group that is known
        to belong to this partition.
        """
        request = self._refusal_unread(message) or decode_request(message.value)
        if isinstance(request, Refusal):
            return self._checked_address(request)
        reply_partitions = self.layout.reply_partitions
        reply_partition = getattr(request, "reply_partition", 0)  # a request without an answer has none
        if not 0 <= reply_partition < reply_partitions:
            text = f"reply partition {reply_partition} is not one of {reply_partitions}"
            return Refusal(Reason.NO_SUCH_REPLY_PARTITION, text, None)
        return self._misdirected(request, message, is_known) or request

    def _refusal_unread(self, message: LogMessage) -> Refusal | None:
        """Return why a message is refused before its request is decoded, or None."""
        if message.id in self.skip:
            return Refusal(Reason.SKIPPED, "skipped by configuration", None)
        # The topic's own limit applies to compressed bytes.
        text = excess(message.value, self.layout.request_max_bytes)
        if text is not None:
            return refuse_unreadable(message.value, Reason.REQUEST_TOO_LARGE, text)
        if message.n is not None and not takes_packs(self.shards):
            text = f"{NO_PACKS}, because it has {self.shards} shards of a partition"
            return refuse_unreadable(message.value, Reason.INVALID_REQUEST, text)
        return None

    def _checked_address(self, refusal: Refusal) -> Refusal:
        address = refusal.address
        if address is None or 0 <= address.reply_partition < self.layout.reply_partitions:
            return refusal
        return Refusal(refusal.reason, refusal.message, None)

    def _misdirected(
        self, request: AnyRequest, message: LogMessage, is_known: Callable[[str], bool]
    ) -> Refusal | None:
        """Return the refusal of a request under another group's key or slot, or in another group's
        partition.
        """
        group_id, row = request.group_id, message.row
        if message.n is None:
            if group_id.encode() != row.key:
                key = row.key.decode(errors="replace")
                text = f"the record's key is {key!r}, its group_id {group_id!r}"
                return refuse(request, Reason.KEY_MISMATCH, text)
        elif row.key != pack_key(slot_of(group_id)):
            key = row.key.decode(errors="replace")
            text = f"the pack's key is {key!r}, the slot of group {group_id!r} is {slot_of(group_id)}"
            return refuse(request, Reason.KEY_MISMATCH, text)
        # A shard's groups are in its partition. The search for the partition of another group takes longer.
        if row.partition == self.partition and is_known(group_id):
            return None
        partition = partition_of(group_id, self.layout.request_partitions)
        if group_id and row.partition != partition:
            text = f"group {group_id!r} belongs to partition {partition}, this is {row.partition}"
            return refuse(request, Reason.WRONG_PARTITION, text)
        return None
