"""Helpers of the end-to-end tests: unique topics, a coordinator, members, topic contents, and waiting."""

import json
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import click
import msgspec
from kafka.consumer.fetcher import ConsumerRecord

from clients.barrier import wait_for_views
from clients.coordinator_client import CoordinatorClient
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import (
    CLOCK_PATTERN,
    CommittedOffset,
    decode_request,
    is_pack,
    pack,
    request_id,
    unpack,
)
from kafka_why.contract.early_answers import EarlyAnswers, ReplicaId, early_headers, marker_headers
from kafka_why.contract.history_reader import CoordinatorStarted, decode_any_entry, decode_snapshot
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.requests import (
    AnyAnsweredRequest,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    Protocol,
)
from kafka_why.contract.kafka.responses import AnyResponse, JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, Request
from kafka_why.contract.service import ServicePhase
from kafka_why.topic_reader import TopicReader, layout_on
from operations.admin.requests import LEAVE_VERSION
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.topics import prepare_topics
from tests.harness.form import formed
from tests.harness.member_requests import heartbeat, join_group, sync_group
from tests.harness.shared import QUICK_JAVA as QUICK_JAVA
from tests.harness.waiting import WAIT_TIMEOUT_S as WAIT_TIMEOUT_S
from tests.harness.waiting import wait_until as wait_until

CLOCK = re.compile(CLOCK_PATTERN.encode())
START_TIMEOUT_S = 240.0
# A member that says nothing while something starts again is still one.
SESSION_MS = 2 * int(START_TIMEOUT_S) * 1_000

QUICK_SPARK: Mapping[str, str] = MappingProxyType({"spark.driver.extraJavaOptions": QUICK_JAVA})
_NOTHING: Mapping[str, bytes] = MappingProxyType({})


def new_layout(**sizes: int) -> TopicLayout:
    """Return topics with unique names for a test, because tests share one broker."""
    return TopicLayout.named(f"test-{uuid.uuid4()}", **sizes)


def create_topic(servers: ClientConfig, topic: str, partitions: int, settings: dict[str, str]) -> None:
    """Create a topic with these settings, and wait until it can be used."""
    admin = kafka_clients.admin(servers)
    # As many replicas as topics have on that cluster.
    options = {"num_partitions": partitions, "replication_factor": -1, "configs": settings}
    try:
        admin.create_topics({topic: options}, wait_for_metadata=True)
    finally:
        admin.close()


def read_topic(servers: ClientConfig, topic: str) -> list[ConsumerRecord]:
    """Return all records of a topic as of now, each partition's in order."""
    with TopicReader(servers) as reader:
        return list(reader.read_all(topic))


def read_answers(client_config: ClientConfig, layout: TopicLayout) -> list[ConsumerRecord]:
    """Return the records of the responses topic that count, early answers and the query's."""
    answers = EarlyAnswers()
    records = read_topic(client_config, layout.responses_topic)
    return [record for record in records if answers.accepts(record.partition, record.headers)]


def clock_claims(records: list[ConsumerRecord]) -> list[tuple[int, int, int]]:
    """Return the partition, the attested time and the append time in ms of each clock record."""
    return [
        (record.partition, int(match[1]), record.timestamp)
        for record in records
        if record.key is None and (match := CLOCK.match(record.value))
    ]


@contextmanager
def coordinating(options: Options) -> Iterator[Coordinator]:
    """Yield a coordinator that is ready."""
    with Coordinator(formed(options)) as coordinator:
        assert coordinator.status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S), (
            coordinator.status.current
        )
        yield coordinator


@dataclass(frozen=True)
class Member:
    """A member of a group, which sends hand-made requests."""

    client: CoordinatorClient
    group_id: str
    member_id: str
    session_timeout_ms: int = SESSION_MS

    @classmethod
    def of(cls, client: CoordinatorClient, group_id: str, session_timeout_ms: int = SESSION_MS) -> "Member":
        """Request a member id, as every new member does. `join` enters the group."""
        nameless = cls(client, group_id, "", session_timeout_ms)
        response = nameless.join().result()
        assert response.error_code is ErrorCode.MEMBER_ID_REQUIRED
        return cls(client, group_id, response.member_id, session_timeout_ms)

    def join(self) -> Future[JoinGroupResponse]:
        return join_group(
            self.client,
            self.group_id,
            [Protocol("range", self.member_id.encode())],
            member_id=self.member_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=60_000,
        )

    def sync(self, generation: int, assignments: Mapping[str, bytes] = _NOTHING) -> Future[SyncGroupResponse]:
        """Request the assignment. The leader sends all assignments, by member id."""
        given = [MemberAssignment(*item) for item in assignments.items()]
        return sync_group(self.client, self.group_id, generation, self.member_id, given)

    def heartbeat(self, generation: int) -> ErrorCode:
        """Return the answer's error code."""
        return heartbeat(self.client, self.group_id, generation, self.member_id).result().error_code

    def leave(self) -> ErrorCode:
        """Return the answer's error code for this member."""
        header = self.client.header(self.group_id, LEAVE_VERSION)
        request = LeaveGroup(**header, members=[LeavingMember(self.member_id)])
        return self.client.send(request).result().members[0].error_code


def stable_member(client: CoordinatorClient, group_id: str, session_timeout_ms: int = SESSION_MS) -> Member:
    """Return the only member of a group in its first generation, with its assignment."""
    member = Member.of(client, group_id, session_timeout_ms)
    assert member.join().result().generation_id == 1
    assert member.sync(1, {member.member_id: b"everything"}).result().assignment == b"everything"
    return member


def settle(servers: ClientConfig, layout: TopicLayout) -> None:
    """Wait until the topics have everything that the coordinator answered before this call."""
    prefix = layout.requests_topic.removesuffix("-requests")
    with CoordinatorClient(servers, layout_on(servers, prefix), client_id="settle") as client:
        wait_for_views(client)


def history_of(
    servers: ClientConfig, layout: TopicLayout, group_id: str, *, settled: bool = True
) -> list[HistoryEntry]:
    """Return a group's entries on the events topic, in the topic's order. With `settled` the topic has all
    answered changes; the coordinator must run.
    """
    if settled:
        settle(servers, layout)
    decoded = [
        decode_any_entry(record.value)
        for record in read_topic(servers, layout.events_topic)
        if record.key == group_id.encode()
    ]
    return [entry for entry in decoded if isinstance(entry, HistoryEntry)]


def starts(servers: ClientConfig, layout: TopicLayout) -> list[CoordinatorStarted]:
    """Return the entries that coordinators wrote at their starts, in the order of time."""
    decoded = [decode_any_entry(record.value) for record in read_topic(servers, layout.events_topic)]
    said = [entry for entry in decoded if isinstance(entry, CoordinatorStarted)]
    return sorted(said, key=lambda start: start.at_ms)


def topic_id_of(servers: ClientConfig, topic: str) -> str:
    """Return Kafka's id of a topic."""
    admin = kafka_clients.admin(servers)
    try:
        return str(admin.describe_topics([topic])[0]["topic_id"])
    finally:
        admin.close()


def offset_records(servers: ClientConfig, layout: TopicLayout, group_id: str) -> list[CommittedOffset]:
    """Return a group's committed offsets on the offsets topic: the last record of each key."""
    settle(servers, layout)
    last = {record.key: record.value for record in read_topic(servers, layout.offsets_topic)}
    values = [value for key, value in last.items() if value is not None and json.loads(key)[0] == group_id]
    return [msgspec.json.decode(value, type=CommittedOffset) for value in values]


def snapshots_of(servers: ClientConfig, layout: TopicLayout, group_id: str) -> list[GroupSnapshot]:
    """Return a group's records on the groups topic, the latest last."""
    settle(servers, layout)
    records = read_topic(servers, layout.groups_topic)
    values = [record.value for record in records if record.key == group_id.encode()]
    decoded = [decode_snapshot(value) for value in values if value is not None]
    return [view for view in decoded if view is not None]


def child_pids(pid: int) -> list[int]:
    """Return the child processes of a process, or none if it has ended."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return children


def command_of(pid: int) -> str:
    """Return the command line of a process, or "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def running(pids: Iterable[int]) -> set[int]:
    """Return the processes that have not ended. A zombie has ended."""
    found = set()
    for pid in pids:
        listing = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        if listing.stdout.strip() and not listing.stdout.startswith("Z"):
            found.add(pid)
    return found


def note(record: Callable[[str, object], None], what: str, measured: str) -> None:
    """Add a measurement to the test report, and print it with `pytest -s`."""
    record(what, measured)
    click.echo(f"measured: {what}: {measured}")


PATIENCE_S = 30.0


class PendingRequest(msgspec.Struct, frozen=True):
    """A request in the log. `at_s` is its append time, and `key` the key of its record."""

    request: AnyAnsweredRequest
    id: str
    at_s: float
    partition: int
    key: bytes


class OtherSide:
    """Acts as the coordinator: creates a layout's topics, and follows its requests from the start."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        prepare_topics(client_config, layout)
        self._layout = layout
        self._backlog: list[PendingRequest] = []
        self._requests = TopicReader(client_config)
        self._requests.start(beginning=self._requests.partitions_of(layout.requests_topic))
        self._producer = kafka_clients.producer(client_config)

    def next(self) -> PendingRequest:
        return self.next_where(lambda asked: True)

    def next_where(self, wanted: Callable[[PendingRequest], bool]) -> PendingRequest:
        """Return the next request for which `wanted` is true. Others before it stay for later calls."""
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            for index, asked in enumerate(self._backlog):
                if wanted(asked):
                    return self._backlog.pop(index)
            assert time.monotonic() < give_up_s, "no such request came"
            self._poll()

    def answer(
        self,
        asked: PendingRequest,
        response: type[AnyResponse],
        *,
        early: ReplicaId | None = None,
        **fields: object,
    ) -> None:
        """Answer a request, by default with error code 0. With `early`, answer as this replica."""
        headers = [] if early is None else early_headers(early, int(asked.at_s * 1000))
        self.write(asked.request.reply_partition, _encoded(asked, response, fields), headers)

    def answer_packed(self, several: Sequence[PendingRequest], response: type[AnyResponse]) -> None:
        """Answer requests of one client in one record."""
        (reply_partition,) = {asked.request.reply_partition for asked in several}
        self.write(reply_partition, pack(_encoded(asked, response, {}) for asked in several))

    def mark(self, reply_partition: int, first: ReplicaId) -> None:
        """Append a marker, which says that replicas before `first` are replaced."""
        self.write(reply_partition, None, marker_headers(first))

    def write(
        self, reply_partition: int, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """Write any bytes to the responses topic."""
        # An empty key, because kafka-python refuses a record that has neither key nor value.
        self._producer.send(
            self._layout.responses_topic, value, b"", partition=reply_partition, headers=list(headers)
        ).get(30)

    def _poll(self) -> None:
        for record in self._requests.poll(timeout_ms=200):
            place = request_id(record.topic, record.partition, record.offset)
            for number, encoded in enumerate(unpack(record.value)):
                request = decode_request(encoded)
                assert isinstance(request, Request), request
                id_ = f"{place}#{number}" if is_pack(record.value) else place
                self._backlog.append(
                    PendingRequest(request, id_, record.timestamp / 1000, record.partition, record.key)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()
        self._requests.close()


def _encoded(asked: PendingRequest, response: type[AnyResponse], fields: Mapping[str, object]) -> bytes:
    given = {
        "group_id": asked.request.group_id,
        "correlation_id": asked.request.correlation_id,
        "request": asked.id,
        "error_code": 0,
    }
    return msgspec.json.encode(response(**{**given, **fields}))  # type: ignore[arg-type]
