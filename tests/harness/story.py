"""Formats steps and groups as text, with the names of a scenario instead of ids."""

import re
from uuid import UUID

from msgspec import UnsetType

from kafka_why.contract.kafka.history import HistoryEntry, OffsetChange
from kafka_why.contract.kafka.requests import Unanswered
from kafka_why.contract.kafka.responses import (
    AnyResponse,
    ConsumerGroupHeartbeatResponse,
    DescribeGroupResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
    TxnOffsetCommitResponse,
)
from kafka_why.contract.protocols.subscriptions import decode_assignment, decode_subscribed_topics
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import Effects, KafkaGroup, TransactionChange
from state.kafka.group import DeadlineReached, PendingOffsets
from state.kafka.protocols import KafkaEvent
from state.protocol import Failed, Outage, Quarantine, Received
from tests.harness import consumer_story, share_story, streams_story
from tests.harness.options import time_text


class Names:
    """The names of members (`@m1`, then `@m1.2`) and of requests (`m1.join`, then `m1.join2`)."""

    def __init__(self) -> None:
        self.members: dict[str, str] = {}
        self.topics: dict[UUID, str] = {}
        self._requests: dict[str, str] = {}

    def name_member(self, member_id: str, client: str) -> None:
        self.members[member_id] = _first_free(f"@{client}", ".", set(self.members.values()))

    def name_request(self, request_id: str, name: str) -> None:
        self._requests[request_id] = _first_free(name, "", set(self._requests.values()))

    def resolve(self, text: str) -> str:
        """Return the member id of a name, other text unchanged. Raises ValueError for an unknown name."""
        for member_id, name in self.members.items():
            if name == text:
                return member_id
        if text.startswith("@"):
            raise ValueError(f"nobody was given an id yet that is called {text}")
        return text

    def put_in(self, text: str) -> str:
        """Return the text with names in place of ids."""
        for member_id, name in self.members.items():
            text = text.replace(member_id, name)
        for topic_id, name in self.topics.items():
            text = text.replace(str(topic_id), name)
        return re.sub(r"requests-0-\d+", lambda match: self._requests[match[0]], text)


def _first_free(name: str, before_number: str, taken: set[str]) -> str:
    number = 1
    candidate = name
    while candidate in taken:
        number += 1
        candidate = f"{name}{before_number}{number}"
    return candidate


def describe_step(event: KafkaEvent, at_ms: int, effects: Effects, names: Names) -> list[str]:
    """Describe a step: the event with its answer and the applied rows of docs/rules.md, the answers to other
    requests, and the history entries.
    """
    own, others = "", []
    for reply in effects.replies:
        text = f"{_reply(reply.response, names)} ({reply.response.rule})"
        if isinstance(event, Received) and reply.response.request == event.request_id:
            own = f" -> {text}"
        else:
            others.append(f"  -> {reply.response.request} {text}")
    if isinstance(event, Received) and not (own or isinstance(event.request, Unanswered)):
        own = " waits"
    rows = f" [{' '.join(effects.rules)}]" if effects.rules else ""
    lines = [f"{time_text(at_ms)} {_event(event)}{own}{rows}", *others]
    lines += [f"  * {_entry(entry)} ({entry.rule})" for entry in effects.history]
    if effects.offsets:
        lines.append(f"  offsets {' '.join(_offset(change) for change in effects.offsets)}")
    lines += [f"  pending {_transaction(change)}" for change in effects.transactions]
    return [names.put_in(line) for line in lines]


def _offset(change: OffsetChange) -> str:
    offset = "-" if change.offset is None else change.offset.offset
    return f"{change.topic}-{change.partition}={offset}"


def _transaction(change: TransactionChange) -> str:
    """`producer 1 p1.txn-commit t-0=5`, without offsets if they are pending no longer."""
    offsets = "-" if change.pending is None else _pending_offsets(change.pending)
    return f"producer {change.producer_id} {change.request}: {offsets}"


def _pending_offsets(entry: PendingOffsets) -> str:
    return " ".join(f"{t}-{p}={o.offset}" for t, offsets in entry.offsets.items() for p, o in offsets.items())


def _event(event: KafkaEvent) -> str:
    match event:
        case Received():
            return event.request_id
        case Failed():
            return f"{event.request_id} failed"
        case DeadlineReached() | Outage():
            return _due(event)
        case Quarantine():
            return f"{_due(event.deadline)} failed"


def _due(deadline: DeadlineReached | Outage) -> str:
    if isinstance(deadline, Outage):
        return "takeover"
    suffix = f" of {deadline.member_id}" if deadline.member_id else ""
    return f"{deadline.kind.name.lower()} deadline{suffix}"


def _reply(response: AnyResponse, names: Names) -> str:
    parts = [response.error_code.name]
    match response:
        case JoinGroupResponse(protocol_name=str()):
            parts += [
                f"generation={response.generation_id}",
                f"protocol={response.protocol_type}/{response.protocol_name}",
                f"leader={response.leader}",
                f"member={response.member_id}",
            ]
            if response.members:
                members = [
                    f"{_who(m.member_id, m.group_instance_id)}:{_metadata(m.metadata)}"
                    for m in response.members
                ]
                parts.append(f"members={','.join(members)}")
            if response.skip_assignment:
                parts.append("skip_assignment")
        case ConsumerGroupHeartbeatResponse(member_id=str() as member_id):
            parts += consumer_story.reply(response, names.topics)
            parts += [f"member={member_id}"] if member_id in names.members else []  # else the client's own
        case JoinGroupResponse(member_id=member_id) if member_id:
            parts.append(f"member={member_id}")
        case SyncGroupResponse(protocol_name=str()):
            parts.append(f"protocol={response.protocol_type}/{response.protocol_name}")
            parts.append(f"assignment={_assignment(response.assignment)}")
        case LeaveGroupResponse():
            parts += [
                f"{_who(m.member_id, m.group_instance_id)}:{m.error_code.name}" for m in response.members
            ]
        case _:
            parts += _about_offsets(response) or consumer_story.reply(response, names.topics)
            parts += share_story.reply(response, names.topics) or streams_story.reply(response)
    return " ".join(parts)


def _about_offsets(response: AnyResponse) -> list[str]:
    match response:
        case OffsetCommitResponse() | TxnOffsetCommitResponse() | OffsetDeleteResponse():
            return [
                f"{t.name}-{p.partition_index}:{p.error_code.name}"
                for t in response.topics
                for p in t.partitions
            ]
        case OffsetFetchResponse():
            return [
                f"{t.name}-{p.partition_index}={p.committed_offset}"
                + (f":{p.metadata}" if p.metadata else "")
                + (f":{p.error_code.name}" if p.error_code else "")
                for t in response.topics
                for p in t.partitions
            ]
        case DescribeGroupResponse():
            members = [
                f"{_who(m.member_id, m.group_instance_id)}:{_metadata(m.member_metadata)}"
                f":{_assignment(m.member_assignment)}"
                for m in response.members
            ]
            parts = [response.group_state, f"protocol={response.protocol_type}/{response.protocol_data}"]
            parts += [f"members={','.join(members)}"] if members else []
            pending = {} if isinstance(response.pending_offsets, UnsetType) else response.pending_offsets
            return parts + [
                f"pending {t}-{p}={o}" for t, offsets in pending.items() for p, o in offsets.items()
            ]
    return []


def _metadata(metadata: bytes) -> str:
    """Return a subscription's topics in brackets, other metadata unchanged."""
    if metadata.startswith(b"\0"):
        return f"[{' '.join(decode_subscribed_topics(metadata))}]"
    return metadata.decode()


def _assignment(assignment: bytes) -> str:
    """Return the partitions of the coordinator's assignment in brackets, other assignments unchanged."""
    if assignment.startswith(b"\0"):
        return f"[{' '.join(f'{topic}-{n}' for topic, n in decode_assignment(assignment).partitions)}]"
    return assignment.decode()


def _who(member_id: str, instance_id: str | None) -> str:
    return member_id if instance_id is None else f"{member_id}/{instance_id}"


def _entry(entry: HistoryEntry) -> str:
    parts = [entry.type.value]
    if entry.from_state != entry.to_state:
        parts.append(f"({entry.from_state} -> {entry.to_state}, generation {entry.generation})")
    if entry.member_id is not None:
        parts.append(_who(entry.member_id, entry.group_instance_id))
    details = {
        "leader": entry.leader_id,
        "protocol": entry.protocol_name,
        "members": _joined(entry.members),
        "topics": _joined(entry.topics),
        "subscriptions": " ".join(f"{m}:{_joined(t)}" for m, t in (entry.subscriptions or {}).items()),
        "waiting_for": _joined(entry.waiting_for),
        "deadline": None if entry.deadline_ms is None else time_text(entry.deadline_ms),
        "partitions": _partitions(entry.partitions),
        "superseded": entry.superseded,
        "late_by": None if entry.late_by_ms is None else time_text(entry.late_by_ms),
        "client_reason": entry.client_reason,
        "transactional_id": entry.transactional_id,
        "producer_id": entry.producer_id,
        "process": entry.process_id,
        **consumer_story.details(entry),
    }
    shown = [f"{name}={value}" for name, value in details.items() if value]
    return " ".join([*parts, "-", entry.reason, *([f"[{' '.join(shown)}]"] if shown else [])])


def _partitions(partitions: dict[str, list[int]] | None) -> str:
    return ",".join(
        f"{topic}-{number}" for topic, numbers in (partitions or {}).items() for number in numbers
    )


def _joined(ids: list[str] | None) -> str:
    return ",".join(ids or [])


def describe(group: KafkaGroup, names: Names) -> list[str]:
    """Describe the group: its head, its members, its offsets and armed deadlines. Scenarios of share groups
    and streams groups expect these of a group instead.
    """
    assert isinstance(group, ClassicGroup | ConsumerGroup)
    if isinstance(group, ClassicGroup):
        lines = _classic(group)
    else:
        lines = consumer_story.describe(group, names.topics)
    return [names.put_in(line) for line in [*lines, *_shell(group)]]


def _classic(group: ClassicGroup) -> list[str]:
    """Return a classic group's head, its members in join order, pending ids, and rebalance deadlines."""
    head = [
        f"group {group.group_id}: {group.state}, generation {group.generation}",
        f"protocol {group.protocol_type}/{group.protocol_name}",
        f"leader {group.leader_id}",
    ]
    lines = [", ".join(head), *(f"  {_member(member)}" for member in group.members.values())]
    for member_id, pending in group.pending_members.items():
        lines.append(f"  {member_id} pending, until {time_text(pending.heartbeat_deadline_ms)}")
    if group.join_phase is not None:
        lines.append(f"  join deadline {time_text(group.join_phase.deadline_ms)}")
    if group.sync_deadline_ms is not None:
        lines.append(f"  sync deadline {time_text(group.sync_deadline_ms)}")
    if group.subscribed_topics is not None and group.members:
        lines.append(f"  subscribed to {' '.join(group.subscribed_topics)}")
    return lines


def _shell(group: KafkaGroup) -> list[str]:
    """Return what groups of both protocols have: offsets, transactions, the retention deadline."""
    lines = []
    for topic, partitions in group.offsets.items():
        offsets = " ".join(f"{number}={offset.offset}" for number, offset in partitions.items())
        lines.append(f"  offsets of {topic}: {offsets}")
    for entry in group.pending:
        transaction = (
            f"producer {entry.producer_id}, epoch {entry.producer_epoch}, position {entry.txn_position}"
        )
        lines.append(f"  pending in {transaction}: {_pending_offsets(entry)}")
    for producer_id, ended in group.ended.items():
        lines.append(f"  ended: producer {producer_id} at {ended.txn_position}")
    if group.retention_deadline_ms is not None:
        lines.append(f"  retention deadline {time_text(group.retention_deadline_ms)}")
    if group.quarantined is not None:
        lines.append(f"  quarantined: {group.quarantined}")
    return lines


def _member(member: ClassicGroupMember) -> str:
    session = (
        "none" if member.heartbeat_deadline_ms is None else f"until {time_text(member.heartbeat_deadline_ms)}"
    )
    parts = [f"{_who(member.member_id, member.group_instance_id)} session {session}"]
    if member.is_new:
        parts.append("new")
    if member.parked_join is not None:
        parts.append(f"{member.parked_join.request} waits")
    if member.parked_sync is not None:
        parts.append(f"{member.parked_sync.request} waits")
    if member.pending_sync:
        parts.append("has not synced")
    if member.assignment:
        parts.append(f"assignment {_assignment(member.assignment)}")
    return ", ".join(parts)
