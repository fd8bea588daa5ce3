"""From where each group of a recording can be judged.

A group's state is known at the beginning of a topic that has lost no record, at the state that the recording
begins with, and where a group is created: an incarnation of a group is named after the request that created
it.
"""

from typing import NamedTuple

from msgspec import Struct

from kafka_why.contract.codec import record_of
from kafka_why.partitioner import partition_of
from operations.replay.recording import Header, Recording
from operations.replay.topic_contents import Found


class Place(NamedTuple):
    """The place of a request in the log. `n` is 0 for a record that is no pack."""

    partition: int
    offset: int
    n: int


class Start(Struct, frozen=True):
    """Where the replay of a group begins.

    `is_cut`: the log's beginning is gone, and the replay begins with `request`, which created the group anew.
    If `request` is None, the log has no such request, so the group cannot be judged at all. Else the group is
    known from the beginning of the recording, in the state after entry `seq` of `incarnation`.
    """

    is_cut: bool = False
    request: str | None = None
    incarnation: str = ""
    seq: int = 0

    def has(self, place: Place) -> bool:
        """Whether a request of the group is at or after the start."""
        if not self.is_cut:
            return True
        return self.request is not None and place >= _place(self.request)


def starts_of(recording: Recording, found: Found) -> dict[str, Start]:
    """The starts of the groups that do not simply begin with the recording's log."""
    header = recording.header
    starts: dict[str, Start] = {}
    for state in recording.states():
        group = state.decode()
        starts[state.group_id] = Start(incarnation=group.incarnation, seq=group.seq)
    if header.starts_from is not None:
        return starts
    for group_id, incarnations in found.incarnations_by_group().items():
        if not header.wants(group_id):
            continue
        partition = partition_of(group_id, header.layout.request_partitions)
        places = {incarnation: place_of(incarnation, header) for incarnation in incarnations}
        if partition in header.is_first and None not in places.values():
            continue
        created = [
            (place, incarnation)
            for incarnation, place in places.items()
            if place is not None and is_recorded(place, header)
        ]
        starts[group_id] = Start(is_cut=True, request=min(created)[1] if created else None)
    return starts


def place_of(request: str, header: Header) -> Place | None:
    """The place of a request, None if the id is not of a request of the recorded topic."""
    try:
        topic = record_of(request)[0]
    except ValueError:
        return None
    return _place(request) if topic == header.identity.requests_topic else None


def is_recorded(place: Place, header: Header) -> bool:
    """Whether a place is in the recorded part of the log."""
    return header.begins.get(place.partition, 0) <= place.offset < header.ends.get(place.partition, 0)


def _place(request: str) -> Place:
    _, partition, offset = record_of(request)
    return Place(partition, offset, int(request.partition("#")[2] or 0))
