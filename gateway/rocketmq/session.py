"""Requests about groups on one client connection at a broker port, and messages to its client.

A request that the broker also gets is passed as the client's own bytes. A request waits for the coordinator
for less time than the client waits for the response. If that time is over, the coordinator still handles the
request later.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import structs

from gateway.limits import MIB
from gateway.rocketmq.backend import (
    Answer,
    AskBroker,
    ConnectedClient,
    CoordinatorRequests,
    Exchange,
    GroupOrder,
    RequestFields,
    is_from_coordinator,
    split_heartbeat,
)
from gateway.rocketmq.grants import LockHolder, PendingLock, QueueGrants
from gateway.rocketmq.metadata import METADATA_CHANGES, RocketMqMetadata
from gateway.rocketmq.peers import Peers, Restart, RocketMqGroupsView
from kafka_why.contract.rocketmq.requests import (
    GetConsumerListByGroup,
    LockBatchMq,
    LockBatchMqResponse,
    QueryAssignment,
    RegisterConsumer,
    RegisterProducer,
    RegisterResponse,
    Request,
    ResponseCode,
    SetMessageRequestMode,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
    UnregisterProducer,
    UnregisterResponse,
)
from kafka_why.remoting import bodies
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import FRAME_MAX_BYTES, Header, encode_frame
from kafka_why.remoting.strict_json import MalformedFrame

LOCK_WAIT_S = 0.9
"""Less than the 1,000 ms for which a client waits for the answer to a lock request."""
_REASON_MAX_LENGTH = 200
"""A reason is truncated, because it may contain the client's own bytes."""

IS_SUB_CHANGE = "IS_SUB_CHANGE"
"""The field by which a broker requests a full heartbeat. Source: MixAll.java."""
_FRAME_MAX_BYTES = MIB
_RENEWALS_MAX = 16
"""While this many lock requests are unanswered, a client waits for the coordinator."""
_CHANGES_REMEMBERED = 64
_ONE_WAY = 2  # the flag of a header: no response is expected
_CONSUMER_GROUP = "consumerGroup"
_NO_CONSUMER = "no consumer for this group, "  # the beginning of a broker's remark
_COMING_BACK = "the gateway was started, and the group's clients are coming back"
_NO_ANSWER = "the coordinator has not answered in time"
_BROKER_HANGS = "the broker has not answered this request, or an earlier one about the group, in time"


class GatewayParts(NamedTuple):
    """The parts of one gateway that its connections share."""

    coordinator: CoordinatorRequests
    groups: RocketMqGroupsView
    metadata: RocketMqMetadata
    restart: Restart
    peers: Peers


class GroupSession:
    """The groups of one client connection, and the requests about them.

    `forget` is called with the connection's name at its end.
    """

    def __init__(self, parts: GatewayParts, client: ConnectedClient, forget: Callable[[str], object]) -> None:
        self.client = client
        self._forget = forget
        self._parts = parts
        self._order = GroupOrder()
        self._grants = QueueGrants()
        self._registered: dict[tuple[type[Request[Any]], str], str] = {}
        """The client id by type of registration and group id."""
        self._known_fingerprint: int | None = None
        """The fingerprint of the client's last heartbeat, a hash of its subscriptions, if the coordinator
        knows these subscriptions.
        """
        self._changes: deque[tuple[str, str]] = deque(maxlen=_CHANGES_REMEMBERED)
        """The latest changes of which the client was notified: group ids, and the requests that caused them.
        """
        self._is_closed = False
        self._opaques = count(1)

    @staticmethod
    def frame_max_bytes(code: int) -> int:
        """Return the maximum size of a request that `answer` handles, or 0 if requests of this code pass."""
        if code in _HANDLERS:
            return _FRAME_MAX_BYTES
        return FRAME_MAX_BYTES if code in METADATA_CHANGES else 0

    async def answer(self, request: Header, body: bytes, ask_broker: AskBroker) -> bytes | None:
        """Return the frame of the answer, or None for a one-way request.

        Calls must be in the order in which the requests came, and need not wait for each other. `ask_broker`
        is called at most once. Raises its ConnectionError.
        """
        exchange = Exchange(request, body, ask_broker)
        if request.is_one_way and request.code not in _SAFE_ONE_WAY and await self._has_acls():
            await ask_broker()
            return None
        try:
            answer = await _HANDLERS.get(request.code, GroupSession._change_metadata)(self, exchange)
        except MalformedFrame as error:
            answer = exchange.answer(ResponseCode.SYSTEM_ERROR, str(error)[:_REASON_MAX_LENGTH])
        except TimeoutError:
            answer = exchange.answer(ResponseCode.SYSTEM_ERROR, _BROKER_HANGS)
        return None if request.is_one_way else answer

    def notify(self, group_id: str) -> None:
        """Notify the client to rebalance the group, unless the connection has ended."""
        if not self._is_closed:
            header = Header(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                next(self._opaques) & 0x7FFFFFFF,  # not negative as an int of Java
                flag=_ONE_WAY,
                ext_fields={_CONSUMER_GROUP: group_id},
            )
            self.client.send(encode_frame(header))

    def is_new_change(self, group_id: str, request: str) -> bool:
        """Remember a group's change, which this request caused. Return True if the change is new.

        The gateway is notified of each change twice: early by a replica, and later by a batch of the Spark
        query.
        """
        if (group_id, request) in self._changes:
            return False
        self._changes.append((group_id, request))
        return True

    async def end(self, reason: str) -> None:
        """Remove the connection, which has ended, from its groups. After this it sends no records."""
        if not self._is_closed:
            self._is_closed = True
            self._forget(self.client.connection)
            short_reason = reason[:_REASON_MAX_LENGTH]
            for group_id in dict.fromkeys(group_id for _, group_id in self._registered):
                self._parts.coordinator.close_connection(group_id, self.client.connection, short_reason)

    async def _heartbeat(self, exchange: Exchange) -> bytes:
        """Pass a heartbeat to the broker, and then register the client in each group at the coordinator."""
        heartbeat = bodies.decode_heartbeat(exchange.body)
        consumers = [data.group_name for data in heartbeat.consumer_data_set]
        async with self._order.turn((*consumers, *heartbeat.producer_groups)):
            header, body = await exchange.ask_broker()
            if header.code != ResponseCode.SUCCESS:
                return encode_frame(header, body)
            configs = await asyncio.gather(*map(self._group_config, consumers))
            records = split_heartbeat(
                heartbeat,
                exchange.request,
                self._request_fields,
                {
                    "client_address": self.client.address,
                    "gateway": self._parts.restart.gateway,
                    "gateway_start": self._parts.restart.gateway_start,
                },
                dict(zip(consumers, configs, strict=True)),
            )
            for record in records:
                self._registered[type(record), record.group_id] = record.client_id
            responses = [self._send(record) for record in records]
        is_known = self._known_fingerprint == heartbeat.heartbeat_fingerprint
        all_answers = asyncio.gather(*responses)
        all_answers.add_done_callback(lambda _: self._store_fingerprint(heartbeat, all_answers.result()))
        if header.ext_fields.get(IS_SUB_CHANGE) == "false" and not is_known:
            # The broker needs no full heartbeat, but the coordinator may lack what only that has.
            header = structs.replace(header, ext_fields=header.ext_fields | {IS_SUB_CHANGE: "true"})
        return encode_frame(header, body)

    def _store_fingerprint(
        self, heartbeat: bodies.HeartbeatData, answers: Sequence[RegisterResponse]
    ) -> None:
        """Store the heartbeat's fingerprint if the coordinator knows the subscriptions, else None.

        The answer to a heartbeat does not wait for this, because the client sends no other heartbeat before
        it has the answer. If the client rebalances while it waits, brokers refuse its pulls until they get a
        heartbeat with subscriptions, which a client may never send again (`is_without_sub`). Source:
        MQClientInstance.sendHeartbeatToAllBrokerWithLock.
        """
        is_known = all(
            is_from_coordinator(answer)
            and not answer.is_sub_change
            and not (heartbeat.is_without_sub and answer.is_new)
            for answer in answers
        )
        self._known_fingerprint = heartbeat.heartbeat_fingerprint if is_known else None

    async def _unregister(self, exchange: Exchange) -> bytes:
        """Unregister the client at the coordinator, and then at the broker."""
        consumer = exchange.request.ext_fields.get(_CONSUMER_GROUP, "")
        producer = exchange.request.ext_fields.get("producerGroup", "")
        responses: list[asyncio.Future[UnregisterResponse]] = []
        async with self._order.turn((consumer, producer)):
            config = await self._group_config(consumer) if consumer else None
            if (client_id := self._registered.pop((RegisterConsumer, consumer), None)) is not None:
                fields = self._request_fields(consumer, client_id)
                responses.append(self._send(UnregisterConsumer(**fields, group_config=config)))
            if (client_id := self._registered.pop((RegisterProducer, producer), None)) is not None:
                responses.append(self._send(UnregisterProducer(**self._request_fields(producer, client_id))))
        # The records are sent before the broker gets the request.
        header, body = await exchange.ask_broker()
        await exchange.wait_for(responses)
        return encode_frame(header, body)

    async def _consumer_list(self, exchange: Exchange) -> bytes:
        """Answer with the client ids of the group's consumers."""
        group_id = exchange.required_field(_CONSUMER_GROUP)
        async with self._order.turn((group_id,)):
            if (refusal := await self._refusal(exchange)) is not None:
                return refusal
            if self._parts.restart.postpones(group_id, self.notify):
                return exchange.answer(ResponseCode.SYSTEM_ERROR, _COMING_BACK)
            client_id = self._registered.get((RegisterConsumer, group_id), "")
            response = self._send(GetConsumerListByGroup(**self._request_fields(group_id, client_id)))
        if not await exchange.wait_for([response]):
            remark = response.result().remark if response.done() else _NO_ANSWER
            return exchange.answer(ResponseCode.SYSTEM_ERROR, remark)
        consumers = response.result()
        if consumers.code is not ResponseCode.SUCCESS:
            return exchange.answer(consumers.code, consumers.remark)
        return exchange.answer(body=bodies.encode_consumer_list(consumers.consumer_id_list))

    async def _lock(self, exchange: Exchange) -> bytes:
        """Answer from the grants if all queues are granted, while the coordinator renews the locks.

        If a queue is not granted, or too many renewals are pending, wait for the coordinator first.
        """
        lock_request = bodies.decode_lock_batch(exchange.body)
        holder = LockHolder(lock_request.consumer_group, lock_request.client_id)
        queues = lock_request.mq_set
        async with self._order.turn((holder.group_id,)):
            if (refusal := await self._refusal(exchange)) is not None:
                return refusal
            requested_at_s = time.monotonic()
            is_coordinator_behind = self._grants.pending >= _RENEWALS_MAX
            granted = self._grants.granted(holder, queues, requested_at_s)
            pending = self._grants.start_request(holder, queues, requested_at_s)
            response = self._send(LockBatchMq(**self._request_fields(*holder), mq_set=queues))
            response.add_done_callback(partial(self._settle_lock, pending))
        if is_coordinator_behind or len(granted) < len(queues):
            has_answer = await exchange.wait_for([response], LOCK_WAIT_S)
            if has_answer and response.result().code is not ResponseCode.SUCCESS:
                return exchange.answer(response.result().code, response.result().remark)
            # `_settle_lock` has added the queues of the answer, if it came in time.
            granted = self._grants.granted(holder, queues, time.monotonic())
        return exchange.answer(body=bodies.encode_lock_ok(granted))

    def _settle_lock(self, pending: PendingLock, response: asyncio.Future[LockBatchMqResponse]) -> None:
        answer = response.result()
        self._grants.settle(pending, answer.lock_ok_mq_set if is_from_coordinator(answer) else None)

    async def _unlock(self, exchange: Exchange) -> bytes:
        """Release queues at the coordinator."""
        unlock_request = bodies.decode_lock_batch(exchange.body)
        holder = LockHolder(unlock_request.consumer_group, unlock_request.client_id)
        queues = unlock_request.mq_set
        async with self._order.turn((holder.group_id,)):
            if (refusal := await self._unlock_refusal(exchange, holder)) is not None:
                return refusal
            self._grants.release(holder, queues)
            response = self._send(UnlockBatchMq(**self._request_fields(*holder), mq_set=queues))
        await exchange.wait_for([response], LOCK_WAIT_S)
        return exchange.answer()

    async def _query_assignment(self, exchange: Exchange) -> bytes:
        """Answer with the queues of a topic that the coordinator assigns to the client."""
        query = bodies.decode_query_assignment(exchange.body)
        async with self._order.turn((query.consumer_group,)):
            if (refusal := await self._refusal(exchange)) is not None:
                return refusal
            if self._parts.restart.postpones(query.consumer_group, self.notify):
                return exchange.answer(body=bodies.encode_assignments(None))
            response = self._send(
                QueryAssignment(
                    **self._request_fields(query.consumer_group, query.client_id),
                    topic=query.topic,
                    message_model=query.message_model,
                    strategy_name=query.strategy_name,
                    topic_queues=await self._parts.metadata.topic_queues(query.topic),
                )
            )
        # Without an answer the client keeps its queues. After an error it would compute its share itself, for
        # as long as it runs.
        assignments = None
        if await exchange.wait_for([response]):
            assignments = response.result().message_queue_assignments
        return exchange.answer(body=bodies.encode_assignments(assignments))

    async def _set_mode(self, exchange: Exchange) -> bytes:
        """Set the request mode (pull or pop) of a group at the broker, which may refuse it, and then at the
        coordinator, whose mode is used.
        """
        setting = bodies.decode_set_message_request_mode(exchange.body)
        async with self._order.turn((setting.consumer_group,)):
            header, body = await exchange.ask_broker()
            if header.code != ResponseCode.SUCCESS:
                return encode_frame(header, body)
            response = self._send(
                SetMessageRequestMode(
                    **self._request_fields(setting.consumer_group, client_id=""),
                    topic=setting.topic,
                    mode=setting.mode,
                    pop_share_queue_num=setting.pop_share_queue_num,
                )
            )
        if await exchange.wait_for([response]) and response.result().code is not ResponseCode.SUCCESS:
            return exchange.answer(response.result().code, response.result().remark)
        return encode_frame(header, body)

    async def _change_metadata(self, exchange: Exchange) -> bytes:
        """Let the broker change a topic or a group, for as long as the client waits."""
        header, body = await exchange.ask_broker(within_s=None)
        self._parts.metadata.forget(exchange.request.code)
        return encode_frame(header, body)

    def _send(self, request: Request[Answer]) -> asyncio.Future[Answer]:
        if self._is_closed:
            raise ConnectionResetError("the connection has ended")
        return self._parts.coordinator.send(request)

    def _request_fields(self, group_id: str, client_id: str) -> RequestFields:
        return self._parts.coordinator.request_fields(
            group_id, client_id, self.client.connection, str(self.client.broker)
        )

    async def _group_config(self, group_id: str) -> SubscriptionGroupConfig | None:
        return await self._parts.metadata.group_config(self.client.broker.address, group_id)

    async def _has_acls(self) -> bool:
        return await self._parts.metadata.has_acls(self.client.broker.address)

    async def _refusal(self, exchange: Exchange) -> bytes | None:
        """Return the broker's refusal of a request that the coordinator answers, or None."""
        if not await self._has_acls():
            return None
        header, body = await exchange.ask_broker()
        # A refusal by ACLs has the code SYSTEM_ERROR, too. Only the remark tells that the group is unknown.
        has_no_consumer = header.code == ResponseCode.SYSTEM_ERROR and (header.remark or "").startswith(
            _NO_CONSUMER
        )
        is_allowed = header.code == ResponseCode.SUCCESS or has_no_consumer
        return None if is_allowed else encode_frame(header, body)

    async def _unlock_refusal(self, exchange: Exchange, holder: LockHolder) -> bytes | None:
        """Return the refusal of an unlock, or None."""
        if not exchange.request.is_one_way or not await self._has_acls():
            return await self._refusal(exchange)
        # The broker does not answer a one-way request. But if the client is registered, the broker has
        # allowed a heartbeat for the group on this connection.
        is_registered = self._registered.get((RegisterConsumer, holder.group_id)) == holder.client_id
        return None if is_registered else exchange.answer(ResponseCode.NO_PERMISSION)


_HANDLERS: Mapping[int, Callable[[GroupSession, Exchange], Awaitable[bytes]]] = MappingProxyType(
    {
        RequestCode.HEART_BEAT: GroupSession._heartbeat,
        RequestCode.UNREGISTER_CLIENT: GroupSession._unregister,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: GroupSession._consumer_list,
        RequestCode.LOCK_BATCH_MQ: GroupSession._lock,
        RequestCode.UNLOCK_BATCH_MQ: GroupSession._unlock,
        RequestCode.QUERY_ASSIGNMENT: GroupSession._query_assignment,
        RequestCode.SET_MESSAGE_REQUEST_MODE: GroupSession._set_mode,
    }
)
"""The handlers of requests about groups. `_change_metadata` handles those of METADATA_CHANGES."""
# With ACLs the broker decides, but it does not answer a one-way request. So the gateway handles only those
# one-way requests by which a client changes its own registrations.
_SAFE_ONE_WAY = frozenset((RequestCode.UNREGISTER_CLIENT, RequestCode.UNLOCK_BATCH_MQ))
