"""A client's connection to a broker port, the client's requests about groups, and their order."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypedDict, TypeVar

from gateway.rocketmq.backend import RequestFields
from gateway.rocketmq.brokers import BrokerAddress
from kafka_why.contract.rocketmq.requests import (
    RegisterConsumer,
    RegisterProducer,
    Response,
    SubscriptionGroupConfig,
)
from kafka_why.remoting.bodies import HeartbeatData
from kafka_why.remoting.frames import Header, encode_frame, response_to
from kafka_why.remoting.strict_json import MalformedFrame

ANSWER_WAIT_S = 2.8
"""Less than the 3,000 ms that a client gives most requests (mqClientApiTimeout)."""
_NAME_MAX_LENGTH = 255

R = TypeVar("R", bound=Response)

AskBroker = Callable[[], Awaitable[tuple[Header, bytes]]]
"""Passes the client's own bytes to the broker, and returns the broker's answer. Raises ConnectionError."""


class ConnectedClient(NamedTuple):
    """A client's connection to a broker port.

    `send` writes a frame to the client, and `close` ends the connection for a reason.
    """

    connection: str  # a name that no other connection has ever had
    broker: BrokerAddress
    address: str
    send: Callable[[bytes], None]
    close: Callable[[str], None]


class Exchange:
    """A request of the client, and the time since its arrival."""

    def __init__(self, request: Header, body: bytes, ask_broker: AskBroker) -> None:
        self.request = request
        self.body = body
        self._ask_broker = ask_broker
        self._arrived_at_s = time.monotonic()

    def required_field(self, field: str) -> str:
        """Return a field that the request's header must have. Raises MalformedFrame."""
        if (value := self.request.ext_fields.get(field)) is None:
            raise MalformedFrame(f"the custom field <{field}> is null")
        if len(value) > _NAME_MAX_LENGTH:
            raise MalformedFrame(f"the custom field <{field}> has {len(value)} characters")
        return value

    async def ask_broker(self, until_s: float | None = ANSWER_WAIT_S) -> tuple[Header, bytes]:
        """Return the broker's answer. Raises ConnectionError, and TimeoutError if none has come `until_s`
        after the request's arrival.
        """
        async with asyncio.timeout(None if until_s is None else max(self._left_s(until_s), 0)):
            return await self._ask_broker()

    async def wait_for(self, asked: Iterable[asyncio.Future[R]], until_s: float = ANSWER_WAIT_S) -> bool:
        """Wait for the coordinator's responses until `until_s` after the request's arrival.

        Return True if all have come. Responses that are still missing are not cancelled.
        """
        if not (futures := list(asked)):
            return True
        _, waiting = await asyncio.wait(futures, timeout=max(self._left_s(until_s), 0))
        return not waiting and all(future.result().request for future in futures)

    def _left_s(self, until_s: float) -> float:
        return self._arrived_at_s + until_s - time.monotonic()

    def answer(self, code: int = 0, remark: str | None = None, body: bytes = b"") -> bytes:
        """Return the frame of an answer."""
        return encode_frame(response_to(self.request, code, remark), body)


# The order of one connection's requests about a group.


class GroupOrder:
    """The turns of requests about groups.

    A turn begins when all earlier turns about the same groups have ended. A request takes its turn when it
    arrives, and ends the turn when its records are sent to the coordinator. So the records about a group are
    in the log in the order of the requests, and a request that waits for a broker delays only requests about
    its own groups.
    """

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def turn(self, group_ids: Iterable[str]) -> AsyncIterator[None]:
        """Wait for the turn of a request about these groups, and end the turn with the block.

        Turns are in the order of the calls.
        """
        groups, ended = dict.fromkeys(group_ids), asyncio.Event()
        earlier = {self._last[group_id] for group_id in groups if group_id in self._last}
        self._last.update(dict.fromkeys(groups, ended))
        try:
            for other in earlier:
                await other.wait()
            yield
        finally:
            ended.set()
            for group_id in groups:
                if self._last.get(group_id) is ended:
                    del self._last[group_id]


# Split of a client's heartbeat for all its groups into one record for each group.
#
# Each group has its own state under its own key, so a record with several groups cannot reach them. Each
# group stores the time of its own last heartbeat. In RocketMQ the groups of a connection share that time: a
# group that later heartbeats of the connection omit lives on in RocketMQ, and expires here.
#
# Source: ClientManageProcessor.java, HeartbeatData.java.


CLIENT_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
"""The producer group of every Java client. It gets no records, because one key would have the heartbeats of
all clients, and nothing needs them.
"""


class ConnectionFields(TypedDict):
    """The fields of a heartbeat about its connection."""

    client_address: str
    gateway: str
    gateway_start: str


def split_heartbeat(
    heartbeat: HeartbeatData,
    request: Header,
    about: Callable[[str, str], RequestFields],
    gateway: ConnectionFields,
    group_configs: Mapping[str, SubscriptionGroupConfig | None],
) -> list[RegisterConsumer | RegisterProducer]:
    """Return one request for each group, consumers first. `about` returns the common fields for a group id
    and a client id.
    """
    common: dict[str, Any] = {
        "heartbeat_fingerprint": heartbeat.heartbeat_fingerprint,
        "language": request.language,
        "client_version": request.version,
        **gateway,
    }
    consumers = [
        RegisterConsumer(
            **about(data.group_name, heartbeat.client_id),
            **common,
            message_model=data.message_model,
            consume_type=data.consume_type,
            consume_from_where=data.consume_from_where,
            subscription_data_set=data.subscription_data_set,
            is_without_sub=heartbeat.is_without_sub,
            group_config=group_configs[data.group_name],
        )
        for data in heartbeat.consumer_data_set
    ]
    producers = [
        RegisterProducer(**about(group_id, heartbeat.client_id), **common)
        for group_id in heartbeat.producer_groups
        if group_id != CLIENT_INNER_PRODUCER
    ]
    return [*consumers, *producers]
