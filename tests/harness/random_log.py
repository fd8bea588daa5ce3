"""Random logs that reach many states of a group.

A script is a list of moves: a client takes the next step of a real client, or an unusual one. A script that
is played against the core becomes rows with the ids and generations of that run. The rows are a log like any
other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from kafka_why.contract.kafka.requests import (
    AnyRequest,
    CommittedPartition,
    CommittedTopic,
    DeleteGroup,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    Protocol,
    SyncGroup,
    TopicMetadata,
    TopicPartitions,
    TransactionMarker,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    AnyResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.messages import ErrorCode, ReleaseGroup
from kafka_why.contract.protocols.subscriptions import Subscription, encode_subscription
from state.config import CoordinatorConfig
from state.timeline import Row, Timeline
from tests.harness.common import Common, kafka_effects

T = TypeVar("T")

NOBODY = -1
PARTITIONS = 2
GROUPS = ("a", "b", "c")
PARTITION_OF = {group_id: index % PARTITIONS for index, group_id in enumerate(GROUPS)}
INSTANCE_OF_CLIENT = (None, None, None, "i1", "i2")
SUBSCRIPTION = encode_subscription(Subscription(("t",)), version=0)
PROTOCOLS: tuple[list[Protocol], ...] = (
    [Protocol("range", b"1"), Protocol("sticky", b"1")],
    [Protocol("range", SUBSCRIPTION), Protocol("sticky", SUBSCRIPTION)],
    [Protocol("sticky", b"3"), Protocol("range", b"1")],
    [Protocol("range", b"1")],
    [Protocol("sticky", b"1"), Protocol("sticky", b"2"), Protocol("range", b"4")],
    [],
    [Protocol("coordinator:sticky", SUBSCRIPTION), Protocol("range", SUBSCRIPTION)],
    [Protocol("coordinator:best", SUBSCRIPTION)],
)
USUAL_PROTOCOLS = (0, 0, 6)
SHORT_PAUSES_MS = (0, 1, 400, 1_000)
PAUSES_MS = (*SHORT_PAUSES_MS, 2_999, 3_000, 5_000, 6_000, 7_000, 20_000, 60_000, 300_000)
ODD_KINDS = (
    "join",
    "join",
    "new",
    "new",
    "sync",
    "heartbeat",
    "leave",
    "leave by instance",
    "leave all",
    "release",
    "commit",
    "commit",
    "commit by nobody",
    "txn commit",
    "txn commit",
    "marker",
    "marker",
    "fetch",
    "delete offsets",
    "topic metadata",
    "describe",
    "delete",
)
TOPICS = ("t", "u", "v")
TOPIC_IDS = (UUID(int=1), UUID(int=2), None)


@dataclass(frozen=True)
class Move:
    """A move of a script: after a pause, a client of a group sends a request.

    The `kind` "next" is the next step of a real client. Other kinds are that request at any time. Some fields
    make the request unusual: `id_of` uses another client's id, a `generation_offset` of -1 an old generation,
    of 1 a wrong protocol.
    """

    pause_ms: int
    group_id: str
    client: int
    kind: str
    protocols: int
    session_timeout_ms: int
    rebalance_timeout_ms: int
    api_version: int
    with_instance: bool
    id_of: int | None
    generation_offset: int
    topic: str
    partition: int
    number: int


@dataclass
class Client:
    """A client, and what it knows of its group from its answers."""

    member_id: str = ""
    generation: int = 0
    protocol_name: str | None = None
    members: list[str] = field(default_factory=list)
    next_kind: str = "join"

    def handle_answer(self, response: AnyResponse) -> None:
        """Handle an answer as Kafka's consumer does."""
        match response:
            case JoinGroupResponse(error_code=ErrorCode.NONE):
                self.member_id, self.generation = response.member_id, response.generation_id
                self.protocol_name = response.protocol_name
                self.members = [m.member_id for m in response.members]
                self.next_kind = "sync"
            case JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED):
                self.member_id, self.next_kind = response.member_id, "join"
            case SyncGroupResponse(error_code=ErrorCode.NONE):
                self.next_kind = "heartbeat"
            case HeartbeatResponse(error_code=ErrorCode.NONE):
                pass
            case _ if response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                self.member_id, self.next_kind = "", "join"
            case _:
                self.next_kind = "join"


def script(seed: int, length: int) -> list[Move]:
    """Return a random script. A longer one of a seed begins with the shorter one, so that failures shrink."""
    random = Random(seed)
    groups = random.choice((GROUPS[:1], GROUPS[:1], GROUPS[:2], GROUPS))
    clients = random.randint(1, len(INSTANCE_OF_CLIENT))
    first_client = random.randint(0, len(INSTANCE_OF_CLIENT) - clients)
    hurry = random.choice((0.3, 0.8, 0.95))
    oddness = random.choice((0.05, 0.2, 0.5))
    settling = random.choice((0, 25))
    usual_protocols = random.choice(USUAL_PROTOCOLS)

    def move(index: int) -> Move:
        odds = oddness if index >= settling else 0.0

        def odd(usual: T, others: Sequence[T]) -> T:
            return random.choice(others) if random.random() < odds / 2 else usual

        kind = random.choice(ODD_KINDS) if random.random() < odds else "next"
        return Move(
            pause_ms=random.choice(SHORT_PAUSES_MS if random.random() < hurry else PAUSES_MS),
            group_id=random.choice(groups),
            client=first_client + random.randrange(clients),
            kind=kind,
            protocols=random.randrange(len(PROTOCOLS))
            if kind != "next" and random.random() < 0.5
            else usual_protocols,
            session_timeout_ms=odd(random.choice((6_000, 10_000, 30_000)), (5_000, 60_000, 600_000)),
            rebalance_timeout_ms=odd(random.choice((20_000, 60_000)), (1_000, 0, -1, 400_000)),
            api_version=random.choice((9, 9, 3, 4, 5, 8, 0)),
            with_instance=odd(True, (False,)),
            id_of=odd(None, (*range(len(INSTANCE_OF_CLIENT)), NOBODY)),
            generation_offset=odd(0, (-1, 1)),
            topic=random.choice(TOPICS),
            partition=random.randrange(2),
            number=random.randrange(1_000),
        )

    return [move(index) for index in range(length)]


def realise(moves: Sequence[Move], config: CoordinatorConfig, *, packs: bool = False) -> list[Row]:
    """Return the moves as a log in the order of append times. A row's request id holds its partition.

    With `packs` some rows of the same time and partition share a record.
    """
    timelines = {group_id: Timeline(group_id, None, config) for group_id in GROUPS}
    clients = {group_id: [Client() for _ in INSTANCE_OF_CLIENT] for group_id in GROUPS}
    request_ids = [_RequestIds(partition) for partition in range(PARTITIONS)]
    rows = []
    at_ms = 1_000_000
    for move in moves:
        at_ms += move.pause_ms
        request = request_of(move, clients[move.group_id])
        partition = PARTITION_OF[move.group_id]
        row = Row(at_ms, request_ids[partition].next_id(at_ms, packed=packs and move.number % 3 > 0), request)
        rows.append(row)
        timeline = timelines[move.group_id]
        timeline.apply(row)
        for effects in kafka_effects(timeline.drain_effects()):
            for reply in effects.replies:
                clients[move.group_id][int(reply.response.correlation_id)].handle_answer(reply.response)
    return rows


class _RequestIds:
    """The ids of the requests of a partition."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._offset = -1
        self._packed: tuple[int, int] | None = None  # of the last record if it is a pack: its time and length

    def next_id(self, at_ms: int, *, packed: bool) -> str:
        if packed and self._packed is not None and self._packed[0] == at_ms:
            self._packed = (at_ms, self._packed[1] + 1)
        else:
            self._offset += 1
            self._packed = (at_ms, 1) if packed else None
        record = f"requests-{self._partition}-{self._offset}"
        return record if self._packed is None else f"{record}#{self._packed[1] - 1}"


def request_of(move: Move, group: list[Client]) -> AnyRequest:
    client = group[move.client]
    kind = client.next_kind if move.kind == "next" else move.kind  # of the request
    if kind == "heartbeat" and move.kind == "next" and move.number % 2:
        kind = ("commit", "commit", "txn commit", "marker")[move.number // 2 % 4]
    common: Common = {
        "group_id": move.group_id,
        "correlation_id": str(move.client),
        "reply_partition": 0,
        "api_version": move.api_version,
        "client_id": f"client-{move.client}",
    }
    instance_id = INSTANCE_OF_CLIENT[move.client] if move.with_instance else None
    member_id = client.member_id
    if move.id_of is not None:
        member_id = "nobody" if move.id_of == NOBODY else group[move.id_of].member_id
    match kind:
        case "join" | "new":
            return _join(move, common, "" if kind == "new" else member_id, instance_id)
        case "sync":
            return _sync(move, common, member_id, instance_id, client)
        case "heartbeat":
            generation_id = client.generation + min(move.generation_offset, 0)
            return Heartbeat(
                **common, member_id=member_id, generation_id=generation_id, group_instance_id=instance_id
            )
        case "leave":
            return LeaveGroup(**common, members=[LeavingMember(member_id, instance_id)])
        case "leave by instance":
            return LeaveGroup(**common, members=[LeavingMember("", i) for i in ("i1", "i9", "")])
        case "leave all":
            return LeaveGroup(**common, members=[LeavingMember(c.member_id) for c in group])
        case "release":
            return ReleaseGroup(**common)
    return _offset_request(kind, move, common, member_id, instance_id, client)


def _offset_request(
    kind: str, move: Move, common: Common, member_id: str, instance_id: str | None, client: Client
) -> AnyRequest:
    topic_id = TOPIC_IDS[move.number % len(TOPIC_IDS)]
    partitions = [TopicPartitions(move.topic, [move.partition], topic_id)]
    committed = [CommittedTopic(move.topic, [CommittedPartition(move.partition, move.number)], topic_id)]
    match kind:
        case "commit":
            return OffsetCommit(
                **common,
                generation_id=client.generation + min(move.generation_offset, 0),
                member_id=member_id,
                group_instance_id=instance_id,
                topics=committed,
            )
        case "commit by nobody":
            retention_time_ms = 90_000 if move.number % 3 == 0 else -1
            return OffsetCommit(**common, retention_time_ms=retention_time_ms, topics=committed)
        case "txn commit":
            return TxnOffsetCommit(
                **common,
                **_transaction(move),
                transactional_id=f"t{move.client}",
                txn_version=2 if move.api_version > 4 else 1,
                generation_id=client.generation if move.with_instance else -1,
                member_id=member_id,
                group_instance_id=instance_id,
                topics=committed,
            )
        case "marker":
            marker = _transaction(move)
            marker |= {"txn_position": 25 + move.number % 50, "producer_epoch": 1 + move.number // 3 % 2}
            first_position = move.number % 50 if move.number % 5 == 0 else 0
            return TransactionMarker(
                **common, **marker, first_position=first_position, committed=move.number % 3 > 0
            )
        case "fetch":
            return OffsetFetch(
                **common, topics=partitions if move.number % 2 else None, require_stable=move.number % 3 > 0
            )
        case "delete offsets":
            return OffsetDelete(**common, topics=partitions)
        case "topic metadata":
            image = None if topic_id is None else TopicImage(topic_id, 2)
            return TopicMetadata(group_id=move.group_id, topics={move.topic: image})
        case "describe":
            return DescribeGroup(**common)
        case "delete":
            return DeleteGroup(**common)
    raise ValueError(kind)


def _transaction(move: Move) -> dict[str, Any]:
    """Return the fields of a transaction. Producers and epochs are few, so that some markers match."""
    return {
        "producer_id": move.client % 2,
        "producer_epoch": move.number % 2,
        "txn_partition": 0,
        "txn_position": move.number % 50,
    }


def _join(move: Move, common: Common, member_id: str, instance_id: str | None) -> JoinGroup:
    return JoinGroup(
        **common,
        member_id=member_id,
        group_instance_id=instance_id,
        session_timeout_ms=move.session_timeout_ms,
        rebalance_timeout_ms=move.rebalance_timeout_ms,
        protocol_type="consumer",
        protocols=PROTOCOLS[move.protocols],
        partitions_per_topic={"t": move.number % 9} if move.number % 2 else {},
    )


def _sync(move: Move, common: Common, member_id: str, instance_id: str | None, client: Client) -> SyncGroup:
    return SyncGroup(
        **common,
        member_id=member_id,
        generation_id=client.generation + min(move.generation_offset, 0),
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocol_name="other" if move.generation_offset > 0 else client.protocol_name,
        assignments=[MemberAssignment(m, f"for {m}".encode()) for m in client.members],
    )
