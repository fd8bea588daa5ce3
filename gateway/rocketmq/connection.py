"""Clients' connections to the gateway as a name server, and to its ports of brokers. At a broker's port the
gateway answers requests about groups, and passes all other requests.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

from gateway.limits import MIB
from gateway.log_text import RateLimitedWarning
from gateway.rocketmq.backend import AskBroker
from gateway.rocketmq.brokers import BrokerAddress, broker_addresses
from gateway.rocketmq.frame_relay import FrameHandling
from gateway.rocketmq.joined import (
    JoinedConnection,
    JoinedParts,
)
from gateway.rocketmq.metrics import counted_code
from kafka_why.connections.address import Address
from kafka_why.contract.rocketmq.requests import ResponseCode
from kafka_why.remoting.answers import decode_cluster, decode_route, rewrite_addresses
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, encode_frame, response_to
from kafka_why.remoting.strict_json import MalformedFrame

# The role of a name server: requests pass to a real name server, and answers have the gateway's addresses.


REFUSED_CODES = frozenset(
    {
        # Of brokers and controllers: a broker must not register here.
        *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION),
        *(RequestCode.GET_BROKER_MEMBER_GROUP, RequestCode.BROKER_HEARTBEAT),
        *range(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_APPLY_BROKER_ID + 1),
        # Of administrators: a name server allows them to everybody.
        *(RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
        *(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    }
)

_ROUTE, _CLUSTER = int(RequestCode.GET_ROUTEINFO_BY_TOPIC), int(RequestCode.GET_BROKER_CLUSTER_INFO)
_ROUTES_UNANSWERED_MAX = 4_096

unmapped_routes = RateLimitedWarning("the addresses of a route cannot be mapped", "routes")

MapAddresses = Callable[[list[BrokerAddress], str], Awaitable[Mapping[str, str]]]
"""Returns the advertised address for each real address of these brokers, for a client that is connected to
this host of the gateway. Raises OSError or ValueError if a broker has no advertised address.
"""


def decode_broker_addresses(code: int, body: bytes) -> list[BrokerAddress]:
    """Return the addresses in an answer to a request for a route or the cluster. Raises MalformedFrame."""
    if code == _ROUTE:
        brokers = decode_route(body).broker_datas
    else:
        brokers = tuple(decode_cluster(body).broker_addr_table.values())
    return [address for data in brokers for address in broker_addresses(data)]


class NameServerConnection(JoinedConnection):
    """A client's connection to the gateway in the role of a name server."""

    role = "name server"

    def __init__(
        self,
        parts: JoinedParts,
        accept: Callable[[JoinedConnection], None],
        map_addresses: MapAddresses,
        refused: frozenset[int] = REFUSED_CODES,
    ) -> None:
        super().__init__(parts, accept)
        self._map_addresses = map_addresses
        self._refused = refused
        self._unanswered: dict[int, int] = {}
        """The codes of unanswered requests by opaque, the number that a response has in common with its
        request.
        """

    def decide_request(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Pass a request, unless it is refused."""
        if header.is_response:
            return FrameHandling.FORWARD
        if header.code in self._refused:
            return self.refuse(
                header, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the gateway does not pass this request"
            )
        if self.is_draining and accepts_go_away(header):
            return self.refuse(header, ResponseCode.GO_AWAY, "the gateway is about to stop")
        if not header.is_one_way:
            if header.opaque in self._unanswered or len(self._unanswered) >= _ROUTES_UNANSWERED_MAX:
                raise MalformedFrame(
                    f"opaque {header.opaque} is that of an unanswered request, or there are too many"
                )
            self._unanswered[header.opaque] = header.code
        self.parts.counts.passed[counted_code(header.code)] += 1
        return FrameHandling.FORWARD

    def decide_answer(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Hold an answer that has addresses of brokers, and pass all others."""
        if not header.is_response:
            return FrameHandling.FORWARD
        if self._unanswered.get(header.opaque) in (_ROUTE, _CLUSTER):
            return FrameHandling.HOLD
        if (code := self._unanswered.pop(header.opaque, None)) is not None:
            self.parts.counts.responses[counted_code(code), header.code] += 1
        return FrameHandling.FORWARD

    def handle_answer(self, header: Header, frame: bytes, body_at: int) -> None:
        """Send the client an answer with the gateway's addresses."""
        code = self._unanswered.pop(header.opaque)
        self.parts.counts.responses[code, header.code] += 1
        if len(frame) == body_at:  # an answer without a body has no addresses
            self.send(frame)
        else:
            self.parts.start(self._rewrite(code, header, frame, body_at))

    async def _rewrite(self, code: int, header: Header, frame: bytes, body_at: int) -> None:
        """Send the client an answer with the gateway's addresses, or an error if they cannot be mapped."""
        if self.ended.done():
            return
        body = frame[body_at:]
        try:
            advertised = await self._map_addresses(decode_broker_addresses(code, body), self.client.own_host)
            rewritten = rewrite_addresses(body, advertised.__getitem__)
        except (MalformedFrame, OSError, ValueError, KeyError) as error:
            # With the real addresses, the client would connect to the brokers directly.
            unmapped_routes.add(client=self.peer, error=str(error))
            remark = f"the gateway cannot map the addresses of this route: {error}"
            self.send(encode_frame(response_to(header, ResponseCode.SYSTEM_ERROR, remark)))
            return
        # The first 4 bytes of a frame are the length of the rest, which has changed.
        length = body_at - 4 + len(rewritten)
        self.send(b"".join((length.to_bytes(4), frame[4:body_at], rewritten)))


_GO_AWAY_ABOVE = 475
"""The ordinal of V5_3_1. Later clients connect again on GO_AWAY, and send the request again."""


def accepts_go_away(header: Header) -> bool:
    """Return True if the client can handle GO_AWAY as the answer to this request."""
    return header.version > _GO_AWAY_ABOVE and not header.is_one_way


class BrokerSession(Protocol):
    """The session of a client connection at a broker (`gateway.rocketmq.session`)."""

    def frame_max_bytes(self, code: int) -> int:
        """Return the maximum size of a request that `answer` handles, or 0 if requests of this code pass to
        the broker.
        """

    async def answer(self, request: Header, body: bytes, ask_broker: AskBroker) -> bytes | None:
        """Return the response frame, or None if the client gets no response."""

    async def end(self, reason: str) -> None:
        """Remove the connection, which has ended, from its groups."""


OpenSession = Callable[[str, Callable[[bytes], None], Callable[[str], None]], BrokerSession]
"""Builds the session of a connection from the client's address, the function that sends a frame to the
client, and the function that closes the connection for a reason.
"""

INTER_BROKER_CODES = frozenset(
    {
        *(RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET),
        *(RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE),
        *(RequestCode.EXCHANGE_BROKER_HA_INFO, RequestCode.GET_BROKER_HA_STATUS),
        *(RequestCode.RESET_MASTER_FLUSH_OFFSET, RequestCode.GET_BROKER_EPOCH_CACHE),
        *(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.CLEAN_BROKER_DATA),
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,  # refused only if its field `force` is true
    }
)
"""Requests that brokers send to each other, which are refused by default."""

_STATIC_TOPIC = int(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
_NOTIFY, _UNREGISTER = int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED), int(RequestCode.UNREGISTER_CLIENT)
_IN_FLIGHT_MAX = 64
_IN_FLIGHT_MAX_BYTES = MIB
# Twice the maximum that a client has under way (com.rocketmq.remoting.clientAsyncSemaphoreValue).
_UNANSWERED_MAX = 131_072

failures = RateLimitedWarning("a request failed", "requests", level="error")


class BrokerConnection(JoinedConnection):
    """A client's connection joined with a connection to a broker.

    A response has the same number, RocketMQ's `opaque`, as its request. A number belongs to one request until
    the broker has answered it, so no answer is mistaken for the answer to another request.
    """

    role = "broker"

    def __init__(
        self,
        parts: JoinedParts,
        accept: Callable[[JoinedConnection], None],
        broker: BrokerAddress,
        open_session: OpenSession,
        refused: frozenset[int] = INTER_BROKER_CODES,
    ) -> None:
        super().__init__(parts, accept)
        self.broker = broker
        self._open_session = open_session
        self._refused = refused
        self._session: BrokerSession | None = None
        self._frame_max_bytes: Callable[[int], int] = lambda _: 0
        self._unanswered: dict[int, int] = {}
        """The codes of requests at the broker, by opaque."""
        self._repeated: dict[int, int] = {}
        """The number of further requests with the same opaque, which a client has sent again."""
        self._awaited: dict[int, Future[tuple[Header, bytes]]] = {}
        """The futures of the broker's answers for the gateway, by opaque."""
        self._in_flight = self._in_flight_bytes = 0
        """The requests that the gateway has not answered."""

    def on_joined(self) -> None:
        """Open the session."""
        peer, _ = self.client.endpoints
        self._session = self._open_session(str(Address(*peer)), self.send, self._close)
        self._frame_max_bytes = self._session.frame_max_bytes

    def on_end(self, why: Exception) -> None:
        """Close the session."""
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(ConnectionResetError(str(why)))
                future.exception()  # marks it as retrieved, because asyncio logs other exceptions
        if self._session is not None:
            self.parts.start(self._session.end(str(why)))

    def _close(self, reason: str) -> None:
        self.end(ClosedByCoordinator(reason))

    # From the client.

    def decide_request(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Hold a request about groups, and pass other requests unless they are refused."""
        if header.is_response:
            return FrameHandling.FORWARD
        code = header.code
        if self.is_draining and code != _UNREGISTER and accepts_go_away(header):
            return self.refuse(header, ResponseCode.GO_AWAY, "the gateway is about to stop")
        if header.opaque in self._awaited:
            raise MalformedFrame(f"opaque {header.opaque} is that of an unanswered request")
        if max_bytes := self._frame_max_bytes(code):
            if frame_bytes > max_bytes:
                raise MalformedFrame(f"a request {code} of {frame_bytes} bytes")
            return FrameHandling.HOLD
        is_unforced_static_topic = code == _STATIC_TOPIC and not _is_forced(header)
        if code in self._refused and not is_unforced_static_topic:
            return self.refuse(
                header, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the gateway does not pass this request"
            )
        self.parts.counts.passed[counted_code(code)] += 1
        if not header.is_one_way:
            self._expect(header)
        return FrameHandling.FORWARD

    def _expect(self, header: Header) -> None:
        """Record that the broker will answer this request.

        Raises MalformedFrame if too many requests are unanswered.
        """
        if header.opaque in self._unanswered:
            self._repeated[header.opaque] = self._repeated.get(header.opaque, 0) + 1
        if len(self._unanswered) + len(self._repeated) >= _UNANSWERED_MAX:
            raise MalformedFrame(f"more than {_UNANSWERED_MAX} requests are unanswered")
        self._unanswered[header.opaque] = counted_code(header.code)

    def handle_request(self, header: Header, frame: bytes, body_at: int) -> None:
        """Answer a request about groups."""
        self._in_flight += 1
        self._in_flight_bytes += len(frame)
        self.parts.start(self._answer(header, frame, body_at))
        self.suspend_if_busy()

    async def _answer(self, header: Header, frame: bytes, body_at: int) -> None:
        """Send the client the session's answer to a held request."""
        assert self._session is not None, "requests come after `on_joined`"
        began_s = self._loop.time()
        try:
            answer = await self._session.answer(
                header, frame[body_at:], partial(self._ask_broker, header, frame)
            )
        except Exception as error:  # noqa: BLE001 - the client gets an answer whatever fails
            if self.ended.done():
                return
            failures.add(client=self.peer, code=header.code, exc_info=error)
            answer = encode_frame(response_to(header, ResponseCode.SYSTEM_ERROR, "the gateway failed"))
        finally:
            self._in_flight -= 1
            self._in_flight_bytes -= len(frame)
        self.parts.counts.answered[counted_code(header.code)].add(self._loop.time() - began_s)
        if answer is not None and not header.is_one_way:
            self.send(answer)
        self.count_unanswered()
        self.resume()

    async def _ask_broker(self, header: Header, frame: bytes) -> tuple[Header, bytes]:
        """Pass a held request to the broker, and return the broker's answer. Raises ConnectionError."""
        if self.ended.done():
            raise ConnectionResetError("the connection has ended")
        if header.is_one_way:
            self.client.relay.insert(frame)
            return response_to(header, ResponseCode.SUCCESS), b""
        if header.opaque in self._unanswered:
            error = MalformedFrame(f"opaque {header.opaque} is that of an unanswered request")
            self.end(error)
            raise ConnectionResetError(str(error))
        self._expect(header)
        future = self._awaited[header.opaque] = self._loop.create_future()
        self.client.relay.insert(frame)
        answer: tuple[Header, bytes] = await future
        return answer

    # From the broker.

    def decide_answer(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Hold answers that the gateway waits for, and pass most other frames.

        Drop the broker's notifications of changed consumers, because the coordinator sends its own.
        """
        if header.is_response:
            opaque = header.opaque
            if opaque in self._awaited:
                return FrameHandling.HOLD
            code = self._unanswered.get(opaque)
            if code is not None:
                self.parts.counts.responses[code, header.code] += 1
                self._forget(opaque)
        elif header.code == _NOTIFY:
            self.parts.counts.swallowed += 1
            return FrameHandling.DROP
        return FrameHandling.FORWARD

    def _forget(self, opaque: int) -> None:
        """Record that one of the requests with this opaque is answered."""
        if self._repeated and opaque in self._repeated:
            self._repeated[opaque] -= 1
            if not self._repeated[opaque]:
                del self._repeated[opaque]
        else:
            del self._unanswered[opaque]

    def handle_answer(self, header: Header, frame: bytes, body_at: int) -> None:
        """Give the broker's answer to the request that waits for it, unless that request was canceled."""
        future = self._awaited.pop(header.opaque)
        self.parts.counts.responses[self._unanswered.pop(header.opaque), header.code] += 1
        if not future.done():
            future.set_result((header, frame[body_at:]))

    # Limits on the requests that the gateway answers.

    @property
    def is_overloaded(self) -> bool:
        """True if the client must wait with further requests."""
        return (
            self._in_flight >= _IN_FLIGHT_MAX
            or self._in_flight_bytes >= _IN_FLIGHT_MAX_BYTES
            or self.client.is_full
        )

    @property
    def unanswered_bytes(self) -> int:
        """The bytes of the requests that the gateway has not answered."""
        return self._in_flight_bytes


class ClosedByCoordinator(ConnectionError):
    """The coordinator closed the connection, whose client was silent. `reason` is for metrics."""

    reason = "silent"


def _is_forced(header: Header) -> bool:
    return header.ext_fields.get("force", "").lower() == "true"
