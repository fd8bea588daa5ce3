"""The position in a recording from which each group can be judged.

A group's state is known at the beginning of a topic that has lost no record, at the state that the recording
begins with, and where a group is created: an incarnation of a group is named after the request that created
it.
"""

from typing import NamedTuple

from msgspec import Struct

from kafka_why.contract.codec import record_of
from kafka_why.partitioner import partition_of
from operations.replay.recording import Recording, RecordingHeader
from operations.replay.topic_contents import TopicContents


class LogPosition(NamedTuple):
    """The position of a request in the log. `n` is 0 for a record that is no pack."""

    partition: int
    offset: int
    n: int


class ReplayStart(Struct, frozen=True):
    """The position at which the replay of a group begins.

    If `is_cut`, the beginning of the log is gone, and the replay begins with `request`, which created the
    group anew. If `request` is then None, the log has no such request, so the group cannot be judged. If not
    `is_cut`, the recording begins with the group in its state after entry `seq` of `incarnation`.
    """

    is_cut: bool = False
    request: str | None = None
    incarnation: str = ""
    seq: int = 0

    def has(self, place: LogPosition) -> bool:
        """Return True if a request of the group is at or after the start."""
        if not self.is_cut:
            return True
        return self.request is not None and place >= _position(self.request)


def starts_of(recording: Recording, found: TopicContents) -> dict[str, ReplayStart]:
    """Return the starts of the groups that do not simply begin with the recording's log."""
    header = recording.header
    starts: dict[str, ReplayStart] = {}
    for state in recording.states():
        group = state.decode()
        starts[state.group_id] = ReplayStart(incarnation=group.incarnation, seq=group.seq)
    if header.starts_from is not None:
        return starts
    for group_id, incarnations in found.incarnations_by_group().items():
        if not header.wants(group_id):
            continue
        partition = partition_of(group_id, header.layout.request_partitions)
        places = {incarnation: position_of(incarnation, header) for incarnation in incarnations}
        if partition in header.is_first and None not in places.values():
            continue
        created = [
            (place, incarnation)
            for incarnation, place in places.items()
            if place is not None and is_recorded(place, header)
        ]
        starts[group_id] = ReplayStart(is_cut=True, request=min(created)[1] if created else None)
    return starts


def position_of(request: str, header: RecordingHeader) -> LogPosition | None:
    """Return the position of a request, or None if the id is not that of a request of the recorded topic."""
    try:
        topic = record_of(request)[0]
    except ValueError:
        return None
    return _position(request) if topic == header.identity.requests_topic else None


def is_recorded(place: LogPosition, header: RecordingHeader) -> bool:
    """Return True if a position is in the recorded part of the log."""
    return header.begins.get(place.partition, 0) <= place.offset < header.ends.get(place.partition, 0)


def _position(request: str) -> LogPosition:
    _, partition, offset = record_of(request)
    return LogPosition(partition, offset, int(request.partition("#")[2] or 0))
