"""Early answers, which a replica of the coordinator appends to the responses topic before the query answers.
The query's answer to the same request follows with the same bytes. A reader takes the first of the two, and
drops early answers of a replica that has been replaced (`EarlyAnswers`). Only the headers distinguish the
records, so that the values stay the same.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

Headers = Sequence[tuple[str, bytes | None]]
"""The headers of a record, as kafka-python and librdkafka give them."""


class _Record(Protocol):
    """A record of the responses topic, as kafka-python gives it."""

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
    """The id of a replica: the epoch of its owner's claim (`kafka_why.contract.claims`), and the replica's
    number within that epoch. Later replicas have greater ids.
    """

    owner_epoch: int
    number: int


class AsOf(NamedTuple):
    """The origin of an early answer: its replica, and the latest time in ms that the replica has acted on.
    That is a request's append time, or an attested time up to which it fired deadlines.
    """

    replica: ReplicaId
    as_of_ms: int


Commits = dict[int, list[int]]
"""The committed offsets of each answer, by the answer's position in its record. They are in the order of the
answer's partitions, without those that have an error.
"""


def early_headers(
    replica: ReplicaId, as_of_ms: int, commits: Commits | None = None, *, room_bytes: int = 0
) -> list[tuple[str, bytes]]:
    """Return the headers of a record with early answers. Commits that need more than `room_bytes` are left
    out, so that the record is not too large for its topic.
    """
    headers = [(_EARLY, b"%d.%d %d" % (*replica, as_of_ms))]
    if commits and len(encoded := msgspec.json.encode(commits)) <= room_bytes:
        headers.append((_COMMITS, encoded))
    return headers


def commits_of(headers: Headers | None) -> Commits:
    """Return the committed offsets in the headers of a record with early answers, {} if there are none.

    Raises msgspec.DecodeError.
    """
    for name, value in headers or ():
        if name == _COMMITS:
            return _commits.decode(value or b"")
    return {}


def is_by_query(headers: Headers | None) -> bool:
    """Return True if a record of the responses topic is the query's: neither early answers nor a marker."""
    return not any(name in (_EARLY, _MARKER) for name, _ in headers or ())


def marker_headers(first: ReplicaId) -> list[tuple[str, bytes]]:
    """Return the headers of a marker, a record without a value. After it, readers drop the answers of
    replicas older than `first`.
    """
    return [(_MARKER, b"%d.%d" % first)]


def as_of(headers: Headers | None) -> AsOf | None:
    """Return the origin of an early answer, or None if the record is not an early answer."""
    for name, value in headers or ():
        if name == _EARLY:
            replica, _, at_ms = (value or b"").partition(b" ")
            return AsOf(_replica_id(replica), int(at_ms))
    return None


def marked(headers: Headers | None) -> ReplicaId | None:
    """Return the oldest replica whose answers count after this marker, or None if the record is not a
    marker.
    """
    for name, value in headers or ():
        if name == _MARKER:
            return _replica_id(value or b"")
    return None


def _replica_id(text: bytes) -> ReplicaId:
    epoch, _, number = text.partition(b".")
    return ReplicaId(int(epoch), int(number))


class EarlyAnswers:
    """A filter of the responses topic that drops the answers of replaced replicas. The reader must get each
    partition's records in order.

    A reader that begins in the middle needs no earlier marker. A replaced replica meets the clock record of
    the later owner in the requests topic before any request of this reader.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, ReplicaId] = {}

    def counts(self, partition: Hashable, headers: Headers | None) -> bool:
        """Return True if the reader should use this record. Return False for a marker, for answers of a
        replaced replica, and if the headers are unreadable.
        """
        if not headers:
            return True
        try:
            first, early = marked(headers), as_of(headers)
        except ValueError:
            return False
        if first is not None:
            self._first[partition] = max(first, self._first.get(partition, first))
            return False
        return early is None or partition not in self._first or early.replica >= self._first[partition]


def lists_changed(value: bytes) -> bool:
    """Return True if an early answer lists groups that have changed (`DescribeGroupResponse.changed`). The
    query never gives it. Raises msgspec.DecodeError.
    """
    return _listing.decode(value).changed is not UNSET
