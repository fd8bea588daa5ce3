"""What the end-to-end tests share: own topics, a coordinator, members, what a topic holds, waiting."""

import json
import re
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click
import msgspec
from kafka.consumer.fetcher import ConsumerRecord

from clients.coordinator_client import CoordinatorClient, wait_for_views
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import CLOCK_PATTERN, CommittedOffset
from kafka_why.contract.early_answers import EarlyAnswers
from kafka_why.contract.history_reader import CoordinatorStarted, decode_entry, decode_snapshot
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.requests import LeaveGroup, LeavingMember, MemberAssignment, Protocol
from kafka_why.contract.kafka.responses import JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ServicePhase
from kafka_why.topic_reader import TopicReader, layout_on
from operations.admin.requests import LEAVE_VERSION
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from tests.harness.form import formed
from tests.harness.member_requests import heartbeat, join_group, sync_group
from tests.harness.shared import QUICK_JAVA as QUICK_JAVA
from tests.harness.waiting import WAIT_TIMEOUT_S as WAIT_TIMEOUT_S
from tests.harness.waiting import wait_until as wait_until

CLOCK = re.compile(CLOCK_PATTERN.encode())
START_TIMEOUT_S = 120.0
# A member that says nothing while something starts again is still one.
SESSION_MS = 2 * int(START_TIMEOUT_S) * 1_000

QUICK_SPARK: Mapping[str, str] = MappingProxyType({"spark.driver.extraJavaOptions": QUICK_JAVA})
_NOTHING: Mapping[str, bytes] = MappingProxyType({})


def new_layout(**sizes: int) -> TopicLayout:
    """Topics of its own for a test: tests share one broker."""
    return TopicLayout.named(f"test-{uuid.uuid4()}", **sizes)


def create_topic(servers: ClientConfig, topic: str, partitions: int, settings: dict[str, str]) -> None:
    """Make a topic with these settings, and wait until it can be used."""
    admin = kafka_clients.admin(servers)
    # As many replicas as topics have on that cluster.
    options = {"num_partitions": partitions, "replication_factor": -1, "configs": settings}
    try:
        admin.create_topics({topic: options}, wait_for_metadata=True)
    finally:
        admin.close()


def read_topic(servers: ClientConfig, topic: str) -> list[ConsumerRecord]:
    """All records a topic holds now; of each partition in its order."""
    with TopicReader(servers) as reader:
        return list(reader.read_all(topic))


def read_answers(client_config: ClientConfig, layout: TopicLayout) -> list[ConsumerRecord]:
    """Return the records of the responses topic that count, early answers and the query's."""
    answers = EarlyAnswers()
    records = read_topic(client_config, layout.responses_topic)
    return [record for record in records if answers.accepts(record.partition, record.headers)]


def clock_claims(records: list[ConsumerRecord]) -> list[tuple[int, int, int]]:
    """(partition, claimed ms, append time in ms) of each clock record."""
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
    """A member of a group, by requests of its own making."""

    client: CoordinatorClient
    group_id: str
    member_id: str
    session_timeout_ms: int = SESSION_MS

    @classmethod
    def of(cls, client: CoordinatorClient, group_id: str, session_timeout_ms: int = SESSION_MS) -> "Member":
        """Ask for a member id, as every new member does; `join` enters the group."""
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
        """Ask for the assignment; the leader gives everyone's, by member id."""
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
    """Wait until the coordinator has written to the topics what clients were answered before this call."""
    prefix = layout.requests_topic.removesuffix("-requests")
    with CoordinatorClient(servers, layout_on(servers, prefix), client_id="settle") as client:
        wait_for_views(client)


def history_of(
    servers: ClientConfig, layout: TopicLayout, group_id: str, *, settled: bool = True
) -> list[HistoryEntry]:
    """Return a group's entries on the events topic, in the topic's order.


    With `settled`, here and below, it has everything that clients were answered. The coordinator must run.
    """
    if settled:
        settle(servers, layout)
    decoded = [
        decode_entry(record.value)
        for record in read_topic(servers, layout.events_topic)
        if record.key == group_id.encode()
    ]
    return [entry for entry in decoded if isinstance(entry, HistoryEntry)]


def starts(servers: ClientConfig, layout: TopicLayout) -> list[CoordinatorStarted]:
    """Return what coordinators said when they started, in the order of time."""
    decoded = [decode_entry(record.value) for record in read_topic(servers, layout.events_topic)]
    said = [entry for entry in decoded if isinstance(entry, CoordinatorStarted)]
    return sorted(said, key=lambda start: start.at_ms)


def topic_id_of(servers: ClientConfig, topic: str) -> str:
    """Kafka's id of a topic."""
    admin = kafka_clients.admin(servers)
    try:
        return str(admin.describe_topics([topic])[0]["topic_id"])
    finally:
        admin.close()


def offset_records(
    servers: ClientConfig, layout: TopicLayout, group_id: str, *, settled: bool = True
) -> list[CommittedOffset]:
    """Return a group's committed offsets as the offsets topic has them: the last record of each key."""
    if settled:
        settle(servers, layout)
    last = {record.key: record.value for record in read_topic(servers, layout.offsets_topic)}
    values = [value for key, value in last.items() if value is not None and json.loads(key)[0] == group_id]
    return [msgspec.json.decode(value, type=CommittedOffset) for value in values]


def snapshots_of(
    servers: ClientConfig, layout: TopicLayout, group_id: str, *, settled: bool = True
) -> list[GroupSnapshot]:
    """Return a group's records on the groups topic, the latest last."""
    if settled:
        settle(servers, layout)
    records = read_topic(servers, layout.groups_topic)
    values = [record.value for record in records if record.key == group_id.encode()]
    decoded = [decode_snapshot(value) for value in values if value is not None]
    return [view for view in decoded if view is not None]


def pending_of(
    servers: ClientConfig, layout: TopicLayout, group_id: str, *, settled: bool = False
) -> list[str]:
    """Return the pending members of a group's latest view."""
    return snapshots_of(servers, layout, group_id, settled=settled)[-1].pending_members


def child_pids(pid: int) -> list[int]:
    """Processes whose parent this is; none where it has ended."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return children


def command_of(pid: int) -> str:
    """Return the command line of a process, "" where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def running(pids: Iterable[int]) -> set[int]:
    """Return the processes that have not ended. A process that ended and was not waited for yet has ended."""
    found = set()
    for pid in pids:
        listing = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        if listing.stdout.strip() and not listing.stdout.startswith("Z"):
            found.add(pid)
    return found


def note(record: Callable[[str, object], None], what: str, measured: str) -> None:
    """Keep a measurement in the report, and show it with `pytest -s`."""
    record(what, measured)
    click.echo(f"measured: {what}: {measured}")
