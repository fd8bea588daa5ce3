"""The rows of a shard in the log's order, and the admission of messages: it accepts the requests of a shard's
groups, and refuses other messages with a reason.

A shard is the set of groups that share one keyed state of Spark. A record has one message, or is a pack of
the requests of groups with the same slot, which is a hash of the group id.
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
# The memory of a row besides its key and value, in bytes: the tuple, its numbers, the bytes objects and the
# list entry.
ROW_OVERHEAD_BYTES = 256


class LogRow(NamedTuple):
    """A record of the requests topic. Rows compare in the log's order."""

    partition: int
    offset: int
    at_ms: int  # when the broker appended it
    key: bytes  # b"" for a record without a key
    value: bytes


class LogOrder:
    """A sorter of rows. `add` collects them, and iterating yields them in the log's order. It can be iterated
    only once.
    """

    def __init__(self, run_max_bytes: int = RUN_MAX_BYTES) -> None:
        self._run_max_bytes = run_max_bytes
        self._rows: list[LogRow] = []  # in memory
        self._rows_bytes = 0
        self._runs: list[IO[bytes]] = []  # files of sorted rows

    def add(self, row: LogRow) -> None:
        self._rows.append(row)
        self._rows_bytes += len(row.key) + len(row.value) + ROW_OVERHEAD_BYTES
        if self._rows_bytes > self._run_max_bytes:
            self._spill()

    def __iter__(self) -> Iterator[LogRow]:
        self._rows.sort()
        if not self._runs:
            yield from self._rows
            return
        try:
            yield from heapq.merge(*(_read_run(run) for run in self._runs), self._rows)
        finally:
            for run in self._runs:
                run.close()

    def _spill(self) -> None:
        """Write the rows in memory to a new run."""
        self._rows.sort()
        run = tempfile.TemporaryFile(prefix="group-coordinator-")  # noqa: SIM115 - closed after the merge
        for row in self._rows:
            pickle.dump(tuple(row), run, pickle.HIGHEST_PROTOCOL)
        run.seek(0)
        self._runs.append(run)
        self._rows, self._rows_bytes = [], 0


def _read_run(run: IO[bytes]) -> Iterator[LogRow]:
    """Yield the rows of a run. They are sorted."""
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


def allows_packs(shards: int) -> bool:
    """Return True if all requests of a pack are for one shard. Otherwise packs are refused."""
    return shards <= PACK_SLOTS


class LogMessage(Struct, frozen=True):
    """A message of the log: the whole value of a record, or one message of a pack."""

    row: LogRow  # the record
    n: int | None  # the message's position in its pack, from 0, or None if the record is not a pack
    value: bytes
    id: str  # `kafka_why.contract.codec.request_id`


@dataclass(frozen=True, slots=True)
class Admission:
    """The admission of messages to one shard."""

    layout: TopicLayout
    partition: int  # the shard's partition of requests
    shards: int  # the number of shards of a partition
    skip: frozenset[str]  # ids of records, or of single requests of packs, to refuse without decoding them

    def messages(self, row: LogRow) -> Iterator[LogMessage]:
        """Yield the messages of a record in their order. A pack to skip or one that is too large is one
        message, which `admit` refuses.
        """
        record_id = request_id(self.layout.requests_topic, row.partition, row.offset)
        if not is_pack(row.value) or record_id in self.skip or len(row.value) > self.layout.request_max_bytes:
            yield LogMessage(row, None, row.value, record_id)
            return
        for n, value in enumerate(unpack(row.value)):
            yield LogMessage(row, n, value, f"{record_id}#{n}")

    def admit(self, message: LogMessage, is_known: Callable[[str], bool]) -> AnyRequest | Refusal:
        """Return the request of a message, or its refusal. `is_known` returns True for a group that exists in
        this shard.
        """
        request = self._refusal_before_decoding(message) or decode_request(message.value)
        if isinstance(request, Refusal):
            return self._without_invalid_address(request)
        reply_partitions = self.layout.reply_partitions
        reply_partition = getattr(request, "reply_partition", 0)  # a request without an answer has none
        if not 0 <= reply_partition < reply_partitions:
            text = f"reply partition {reply_partition} is not one of {reply_partitions}"
            return Refusal(Reason.NO_SUCH_REPLY_PARTITION, text, None)
        return self._refuse_misdirected(request, message, is_known) or request

    def _refusal_before_decoding(self, message: LogMessage) -> Refusal | None:
        """Return the refusal of a message whose request must not be decoded, or None."""
        if message.id in self.skip:
            return Refusal(Reason.SKIPPED, "skipped by configuration", None)
        # The topic's own limit applies to compressed bytes.
        text = excess(message.value, self.layout.request_max_bytes)
        if text is not None:
            return refuse_unreadable(message.value, Reason.REQUEST_TOO_LARGE, text)
        if message.n is not None and not allows_packs(self.shards):
            text = f"{NO_PACKS}, because it has {self.shards} shards of a partition"
            return refuse_unreadable(message.value, Reason.INVALID_REQUEST, text)
        return None

    def _without_invalid_address(self, refusal: Refusal) -> Refusal:
        """Return the refusal, without the address for a response if its reply partition does not exist."""
        address = refusal.address
        if address is None or 0 <= address.reply_partition < self.layout.reply_partitions:
            return refusal
        return Refusal(refusal.reason, refusal.message, None)

    def _refuse_misdirected(
        self, request: AnyRequest, message: LogMessage, is_known: Callable[[str], bool]
    ) -> Refusal | None:
        """Return the refusal of a request whose record has another group's key or slot, or is in another
        group's partition. Return None if the request is in its place.
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
        # A known group needs no `partition_of`, which takes longer.
        if row.partition == self.partition and is_known(group_id):
            return None
        partition = partition_of(group_id, self.layout.request_partitions)
        if group_id and row.partition != partition:
            text = f"group {group_id!r} belongs to partition {partition}, this is {row.partition}"
            return refuse(request, Reason.WRONG_PARTITION, text)
        return None
