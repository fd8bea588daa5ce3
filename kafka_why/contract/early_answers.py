"""Early answers, which a replica of the coordinator appends to the responses topic before the query answers.

The query's answer to the same request follows with the same value. Only the headers distinguish the two
records. A reader uses the first of them, and drops early answers of a replica that has been replaced
(`EarlyAnswers`).
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Headers = Sequence[tuple[str, bytes | None]]
"""The headers of a record, as in kafka-python and librdkafka."""


class _Record(Protocol):
    partition: int
    headers: Headers | None


R = TypeVar("R", bound=_Record)


class _Listing(Struct):
    changed: Raw | UnsetType = UNSET


_listing = msgspec.json.Decoder(_Listing)
_commits = msgspec.json.Decoder(dict[int, list[int]])

_EARLY = "early"
_COMMITS = "commits"
_MARKER = "replicas-since"


class ReplicaId(NamedTuple):
    """The id of a replica. Later replicas have greater ids."""

    owner_epoch: int  # of its owner's claim (`kafka_why.contract.claims`)
    number: int  # of the replica in this epoch


class AsOf(NamedTuple):
    """The origin of an early answer."""

    replica: ReplicaId
    as_of_ms: int  # append time of the replica's last request, or time up to which it has fired deadlines


Commits = dict[int, list[int]]
"""The committed offsets of each answer, by the answer's position in its record. The offsets are in the order
of the answer's partitions. Partitions with an error are omitted.
"""


def early_headers(
    replica: ReplicaId, as_of_ms: int, commits: Commits | None = None, *, max_commits_bytes: int = 0
) -> list[tuple[str, bytes]]:
    """Return the headers of a record with early answers.

    Commits of more than `max_commits_bytes` are omitted: the record would be too large for its topic.
    """
    headers = [(_EARLY, b"%d.%d %d" % (*replica, as_of_ms))]
    if commits and len(encoded := msgspec.json.encode(commits)) <= max_commits_bytes:
        headers.append((_COMMITS, encoded))
    return headers


def commits_of(headers: Headers | None) -> Commits:
    """Return the committed offsets in the headers of a record with early answers, or {}.

    Raises msgspec.DecodeError.
    """
    for name, value in headers or ():
        if name == _COMMITS:
            return _commits.decode(value or b"")
    return {}


def is_from_query(headers: Headers | None) -> bool:
    """Return True if the query wrote this record of the responses topic, and not a replica."""
    return not any(name in (_EARLY, _MARKER) for name, _ in headers or ())


def marker_headers(first: ReplicaId) -> list[tuple[str, bytes]]:
    """Return the headers of a marker. After it, readers drop the answers of replicas older than `first`.

    A marker is a record without a value.
    """
    return [(_MARKER, b"%d.%d" % first)]


def as_of(headers: Headers | None) -> AsOf | None:
    """Return the origin of an early answer, or None if the record is not an early answer."""
    for name, value in headers or ():
        if name == _EARLY:
            replica, _, at_ms = (value or b"").partition(b" ")
            return AsOf(_replica_id(replica), int(at_ms))
    return None


def marker_of(headers: Headers | None) -> ReplicaId | None:
    """Return the oldest replica whose answers are valid after this marker, or None if it is not a marker."""
    for name, value in headers or ():
        if name == _MARKER:
            return _replica_id(value or b"")
    return None


def _replica_id(text: bytes) -> ReplicaId:
    epoch, _, number = text.partition(b".")
    return ReplicaId(int(epoch), int(number))


class EarlyAnswers:
    """A filter of the responses topic that drops the answers of replaced replicas.

    Takes a partition's records in order. A reader may begin in the middle of the topic, without the earlier
    markers: a replaced replica stops before it reads any request of this reader, because it first reads the
    later owner's clock record.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, ReplicaId] = {}

    def accepts(self, partition: Hashable, headers: Headers | None) -> bool:
        """Return True if the reader should use this record. A marker and unreadable headers are not used."""
        if not headers:
            return True
        try:
            first, early = marker_of(headers), as_of(headers)
        except ValueError:
            return False
        if first is not None:
            self._first[partition] = max(first, self._first.get(partition, first))
            return False
        return early is None or partition not in self._first or early.replica >= self._first[partition]


def lists_changed(value: bytes) -> bool:
    """Return True if an early answer has `DescribeGroupResponse.changed`. Raises msgspec.DecodeError.

    The query's answers never have it.
    """
    return _listing.decode(value).changed is not UNSET
