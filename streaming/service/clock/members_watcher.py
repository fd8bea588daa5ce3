"""The members watcher: it reads from the groups topic if any group has members (`Pace`)."""

import time

import msgspec
from msgspec import Struct

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import FollowerThread, TopicReader
from streaming.service.clock.pace import Pace
from streaming.service.request_appender import BROKER_TIMEOUT_MS

POLL_S = 1.0


class _View(Struct):
    """The fields of both protocols' views that show if a client may wait for a deadline."""

    members: list[msgspec.Raw] = []
    pending_members: list[msgspec.Raw] = []
    consumers: list[msgspec.Raw] = []
    producers: list[msgspec.Raw] = []
    truncated: bool = False


_decode = msgspec.json.Decoder(_View).decode


class GroupsWithMembers:
    """The groups with members, pending members or clients, by their last records on the groups topic."""

    def __init__(self) -> None:
        self._groups: set[bytes] = set()

    def __bool__(self) -> bool:
        return bool(self._groups)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply the next record of the groups topic. A view that cannot be decoded counts as one with
        members.
        """
        if value is None or not _has_members(value):
            self._groups.discard(key)
        else:
            self._groups.add(key)


def _has_members(value: bytes) -> bool:
    try:
        view = _decode(value)
    except UNREADABLE:
        return True
    return view.truncated or bool(view.members or view.pending_members or view.consumers or view.producers)


class MembersWatcher(FollowerThread):
    """A thread that reads the groups topic after a while without requests, and reports to `pace` if no group
    has members. While no broker answers, it reports nothing.
    """

    _retried = Exception  # without this thread, clock records stay frequent

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, pace: Pace) -> None:
        self._client_config = client_config
        self._layout = layout
        self._pace = pace
        super().__init__("members-watcher", "looking for groups with members")

    def _connect_and_follow(self) -> None:
        """Read the groups topic whenever `pace` needs it, until stopped. Raises KafkaError."""
        if not self._wait_for_quiet():
            return
        with TopicReader(
            self._client_config,
            max_record_bytes=self._layout.response_record_max_bytes,
            timeout_ms=BROKER_TIMEOUT_MS,
        ) as reader:
            groups = GroupsWithMembers()
            partitions = reader.partitions_of(self._layout.groups_topic)
            reader.start(beginning=partitions)
            while self._wait_for_quiet():
                queried_at_s = time.monotonic()
                ends = reader.ends(partitions)
                while not reader.has_read(ends):
                    if self._stopped.is_set():
                        return
                    for record in reader.poll():
                        groups.apply(record.key, record.value)
                self._worked()
                if not groups:
                    self._pace.no_member(queried_at_s)
                self._stopped.wait(POLL_S)

    def _wait_for_quiet(self) -> bool:
        """Wait until `pace` needs to know if groups have members. Return False if stopped."""
        while not self._stopped.is_set():
            if self._pace.is_unproven():
                return True
            self._stopped.wait(POLL_S)
        return False
