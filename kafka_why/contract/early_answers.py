"""Early answers, which a replica of the coordinator appends to the responses topic before the query answers.

The query is the Spark query that applies requests in batches. A replica is a process that applies the same
requests without waiting for a batch. The query's answer to the same request follows with the same value. Only
the headers distinguish the two records. A reader uses the first of them, and drops early answers of a replica
that has been replaced (`EarlyAnswers`).
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Headers = Sequence[tuple[str, bytes | None]]
"""The headers of a record, as in kafka-python and librdkafka."""


class _Listing(Struct):
    """The field of a DescribeGroupResponse that `lists_changed` reads."""

    changed: Raw | UnsetType = UNSET


_listing_decoder = msgspec.json.Decoder(_Listing)
_commits_decoder = msgspec.json.Decoder(dict[int, list[int]])

# The names of headers: of early answers, of the offsets that they commit, and of markers.
_EARLY = "early"
_COMMITS = "commits"
_MARKER = "replicas-since"


class ReplicaId(NamedTuple):
    """The id of a replica. Later replicas have greater ids."""

    owner_epoch: int  # of its owner's claim (`kafka_why.contract.claims`)
    number: int  # of the replica in this epoch


class AsOf(NamedTuple):
    """The replica that sent an early answer, and the time that its state had reached."""

    replica: ReplicaId
    as_of_ms: int  # append time of its last request, or the time up to which it had fired deadlines


Commits = dict[int, list[int]]
"""The committed offsets of each answer, by the answer's position in its record. The offsets are in the order
of the answer's partitions. Partitions with an error are omitted.
"""


def early_headers(
    replica: ReplicaId, as_of_ms: int, commits: Commits | None = None, *, max_commits_bytes: int = 0
) -> list[tuple[str, bytes]]:
    """Return the headers of a record with early answers.

    Commits of more than `max_commits_bytes` are omitted, because the record would be too large for its topic.
    """
    headers = [(_EARLY, b"%d.%d %d" % (replica.owner_epoch, replica.number, as_of_ms))]
    if commits and len(encoded := msgspec.json.encode(commits)) <= max_commits_bytes:
        headers.append((_COMMITS, encoded))
    return headers


def commits_of(headers: Headers | None) -> Commits:
    """Return the committed offsets in the headers of a record with early answers, or {}.

    Raises msgspec.DecodeError.
    """
    value = _header(headers, _COMMITS)
    return {} if value is None else _commits_decoder.decode(value)


def is_from_query(headers: Headers | None) -> bool:
    """Return True if the query, not a replica, wrote this record of the responses topic."""
    return not any(name in (_EARLY, _MARKER) for name, _ in headers or ())


def marker_headers(first: ReplicaId) -> list[tuple[str, bytes]]:
    """Return the headers of a marker. After it, readers drop the answers of replicas older than `first`.

    A marker is a record without a value.
    """
    return [(_MARKER, b"%d.%d" % first)]


def as_of(headers: Headers | None) -> AsOf | None:
    """Return the replica and the time of an early answer, or None for other records."""
    value = _header(headers, _EARLY)
    if value is None:
        return None
    replica, _, at_ms = value.partition(b" ")
    return AsOf(_replica_id(replica), int(at_ms))


def marker_of(headers: Headers | None) -> ReplicaId | None:
    """Return the oldest replica whose answers are valid after this marker, or None if it is not a marker."""
    value = _header(headers, _MARKER)
    return None if value is None else _replica_id(value)


def _header(headers: Headers | None, name: str) -> bytes | None:
    """Return the value of a header, or None if the record does not have it."""
    return next((value or b"" for other, value in headers or () if other == name), None)


def _replica_id(text: bytes) -> ReplicaId:
    """Parse `<owner epoch>.<number>`. Raises ValueError."""
    epoch, _, number = text.partition(b".")
    return ReplicaId(int(epoch), int(number))


class EarlyAnswers:
    """A filter of the responses topic that drops the early answers of replaced replicas.

    It gets each partition's records in order. A reader that begins in the middle of the topic does not see
    earlier markers. The replicas that they replaced answer none of the reader's requests, because each stops
    at a clock record of the later owner, which precedes these requests.
    """

    def __init__(self) -> None:
        self._oldest_valid: dict[Hashable, ReplicaId] = {}  # the oldest replica that counts, by partition

    def accepts(self, partition: Hashable, headers: Headers | None) -> bool:
        """Return True if the reader should use this record.

        A marker, and a record with unreadable headers, should not be used.
        """
        if not headers:
            return True
        try:
            marked, early = marker_of(headers), as_of(headers)
        except ValueError:
            return False
        oldest_valid = self._oldest_valid.get(partition)
        if marked is not None:
            self._oldest_valid[partition] = marked if oldest_valid is None else max(marked, oldest_valid)
            return False
        return early is None or oldest_valid is None or early.replica >= oldest_valid


def lists_changed(value: bytes) -> bool:
    """Return True if an early answer has `DescribeGroupResponse.changed`. Raises msgspec.DecodeError."""
    return _listing_decoder.decode(value).changed is not UNSET
