"""The effects of a step, which applies one event to one group, and the context of a step, in which handlers
read the group and the time and add effects.
"""

from typing import Any

from msgspec import Struct, field

from kafka_why.contract.messages import RECORD_VERSION, ErrorResponse, ReleaseGroup, ReleaseGroupResponse
from kafka_why.contract.rocketmq.history import EntryType, HistoryEntry
from kafka_why.contract.rocketmq.requests import (
    AnyAnsweredRequest,
    AnyResponse,
    AnyToConnection,
    CloseConnection,
    NotifyConsumerIdsChanged,
)
from state.config import BrokerConfig
from state.protocol import BaseContext
from state.rocketmq.group import ClientChannelInfo, ConsumerGroupInfo, RocketMqGroup, scan_after

# The effects of a step, as data.


class Reply(Struct, frozen=True):
    """An answer, and the partition of the responses topic for it."""

    reply_partition: int
    response: AnyResponse | ErrorResponse | ReleaseGroupResponse


class Push(Struct, frozen=True):
    """A one-way message to a connection, and the partition of the responses topic for it."""

    reply_partition: int
    message: AnyToConnection


class Effects(Struct, frozen=True):
    """The outcome of one step: the group after it (None if the group has no state left) and the messages.

    `earliest_armed_ms` is the earliest scan that the step armed, or None. The timeline uses it instead of
    searching the group.
    """

    group: RocketMqGroup | None
    replies: list[Reply] = []
    pushes: list[Push] = []
    history: list[HistoryEntry] = []
    earliest_armed_ms: int | None = None


def connection_details(connection: str, info: ClientChannelInfo) -> dict[str, Any]:
    """Return the fields of a history entry about a connection."""
    return {
        "client_id": info.client_id,
        "connection": connection,
        "broker": info.broker or None,
        "client_address": info.client_address or None,
    }


class StepContext(BaseContext[RocketMqGroup, BrokerConfig], eq=False):
    """The context of RocketMQ's handlers. Handlers change `group` and add effects by the methods here."""

    _replies: list[Reply] = field(default_factory=list)
    _closed: set[str] = field(default_factory=set)  # connections that this step closes
    _pushes: list[Push] = field(default_factory=list)
    _history: list[HistoryEntry] = field(default_factory=list)

    def consumers_at(self, broker: str) -> ConsumerGroupInfo | None:
        """Return the group's consumers at this broker, or None if there are none."""
        table = None if self.group_or_none is None else self.group_or_none.consumers.get(broker)
        return table if table is not None and table.channels else None

    def ensure_group(self) -> RocketMqGroup:
        """Return the group. If it is missing, create it; its incarnation is the id of this request."""
        if self.group_or_none is None:
            self.group_or_none = RocketMqGroup(self.group_id, incarnation=self.cause, clock_ms=self.now_ms)
            self.record(EntryType.GROUP_CREATED, "first request with state to store")
        return self.group_or_none

    def effects(self) -> Effects:
        """Return the effects of the step. A group without any state left becomes None."""
        group = None if self.group_or_none is None or self.group_or_none.is_over() else self.group_or_none
        return Effects(
            group,
            self._replies,
            self._pushes,
            self._history,
            self._earliest_armed_ms if group is not None else None,
        )

    def arm_scan(self, lifetime_ms: int) -> None:
        """Arm the scan for an entry that was renewed now and expires after `lifetime_ms` of silence."""
        self.deadline_at(scan_after(self.now_ms + lifetime_ms, self.config))

    def close(self, connection: str, info: ClientChannelInfo, reason: str) -> None:
        """Close a connection, but only once in a step, even if it is both a consumer's and a producer's."""
        if connection not in self._closed:
            self._closed.add(connection)
            message = CloseConnection(
                group_id=self.group_id,
                connection=connection,
                client_id=info.client_id,
                request=self.cause,
                reason=reason,
            )
            self._pushes.append(Push(info.reply_partition, message))

    def notify_consumer_ids_changed(self, table: ConsumerGroupInfo, broker: str, reason: str | None) -> None:
        """Notify every connection in `table`, the consumers at `broker`, that the list of client ids has
        changed. Without a `reason`, the history gets no entry. Source: DefaultConsumerIdsChangeListener.java
        (CHANGE).
        """
        channels = table.channels
        for connection, info in channels.items():
            message = NotifyConsumerIdsChanged(
                group_id=self.group_id,
                connection=connection,
                client_id=info.client_id,
                request=self.cause,
            )
            self._pushes.append(Push(info.reply_partition, message))
        if channels and reason is not None:
            text = f"{reason}; connections notified: {len(channels)}"
            self.record(EntryType.CONSUMERS_NOTIFIED, text, broker=broker or None)

    def record(self, event: EntryType, reason: str, **details: object) -> None:
        """Add a history entry. Call this after the change that the entry describes."""
        group = self.group
        group.seq += 1
        self._history.append(
            HistoryEntry(
                version=RECORD_VERSION,
                type=event,
                group_id=group.group_id,
                incarnation=group.incarnation,
                seq=group.seq,
                at_ms=self.now_ms,
                reason=reason,
                cause=self.cause,
                **details,  # type: ignore[arg-type]
            )
        )

    def reply(
        self,
        request: AnyAnsweredRequest | ReleaseGroup,
        response: type[AnyResponse | ReleaseGroupResponse],
        **fields: object,
    ) -> None:
        """Answer one request."""
        body = response(
            group_id=self.group_id,
            correlation_id=request.correlation_id,
            request=self.cause,
            **fields,  # type: ignore[arg-type]
        )
        self._replies.append(Reply(request.reply_partition, body))
