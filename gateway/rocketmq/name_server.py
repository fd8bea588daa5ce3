"""The role of a name server: requests pass to a real one, and answers have the gateway's addresses."""

from collections.abc import Awaitable, Callable, Mapping

from gateway.log_text import RateLimitedWarning
from gateway.rocketmq.addresses import BrokerAddress, broker_addresses
from gateway.rocketmq.frame_relay import FrameHandling
from gateway.rocketmq.joined import (
    JoinedConnection,
    JoinedParts,
)
from gateway.rocketmq.metrics import counted_code
from kafka_why.contract.rocketmq.responses import ResponseCode
from kafka_why.remoting.answers import decode_cluster, decode_route, rewrite_addresses
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, encode_frame, response_to
from kafka_why.remoting.strict_json import MalformedFrame

REFUSED_CODES = frozenset(
    {
        # Of brokers and controllers: a broker must not register here.
        *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION),
        *(RequestCode.GET_BROKER_MEMBER_GROUP, RequestCode.BROKER_HEARTBEAT),
        *range(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_APPLY_BROKER_ID + 1),
        # Of administrators: a name server lets everybody do it.
        *(RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
        *(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RequestCode.DELETE_TOPIC_IN_NAMESRV),
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    }
)

_ROUTE, _CLUSTER = int(RequestCode.GET_ROUTEINFO_BY_TOPIC), int(RequestCode.GET_BROKER_CLUSTER_INFO)
_UNANSWERED_MAX = 4_096

failures = RateLimitedWarning("the addresses of a route cannot be mapped", "routes")

MapAddresses = Callable[[list[BrokerAddress], str], Awaitable[Mapping[str, str]]]
"""Returns the advertised address for each real one, for a client that is connected to this host of the
gateway. Raises OSError or ValueError if there is none.
"""


def found_brokers(code: int, body: bytes) -> list[BrokerAddress]:
    """Return the addresses in an answer to a request for a route or the cluster. Raises MalformedFrame."""
    if code == _ROUTE:
        found = decode_route(body).broker_datas
    else:
        found = tuple(decode_cluster(body).broker_addr_table.values())
    return [address for data in found for address in broker_addresses(data)]


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
        """The codes of requests by opaque."""

    def decide_request(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Pass a request, unless it is refused."""
        if header.is_response:
            return FrameHandling.FORWARD
        if header.code in self._refused:
            return self.refuse(
                header, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the gateway does not pass this request"
            )
        if self.is_draining and goes_away(header):
            return self.refuse(header, ResponseCode.GO_AWAY, "the gateway is about to stop")
        if not header.is_one_way:
            if header.opaque in self._unanswered or len(self._unanswered) >= _UNANSWERED_MAX:
                raise MalformedFrame(
                    f"opaque {header.opaque} is that of an unanswered request, or there are too many"
                )
            self._unanswered[header.opaque] = header.code
        self.parts.counts.passed[counted_code(header.code)] += 1
        return FrameHandling.FORWARD

    def decide_answer(self, header: Header, frame_bytes: int) -> FrameHandling:
        """Hold an answer that has addresses."""
        if not header.is_response:
            return FrameHandling.FORWARD
        if self._unanswered.get(header.opaque) in (_ROUTE, _CLUSTER):
            return FrameHandling.HOLD
        if (code := self._unanswered.pop(header.opaque, None)) is not None:
            self.parts.counts.responses[counted_code(code), header.code] += 1
        return FrameHandling.FORWARD

    def take_answer(self, header: Header, frame: bytes, body_at: int) -> None:
        """Send the client an answer with the gateway's addresses."""
        code = self._unanswered.pop(header.opaque)
        self.parts.counts.responses[code, header.code] += 1
        if len(frame) == body_at:
            self.send(frame)
        else:
            self.parts.start(self._rewrite(code, header, frame, body_at))

    async def _rewrite(self, code: int, header: Header, frame: bytes, body_at: int) -> None:
        if self.ended.done():
            return
        body = frame[body_at:]
        try:
            advertised = await self._map_addresses(found_brokers(code, body), self.client.own_host)
            rewritten = rewrite_addresses(body, advertised.__getitem__)
        except (MalformedFrame, OSError, ValueError, KeyError) as error:
            # Unchanged it would lead the client around the gateway.
            failures.add(client=self.peer, error=str(error))
            remark = f"the gateway cannot map the addresses of this route: {error}"
            self.send(encode_frame(response_to(header, ResponseCode.SYSTEM_ERROR, remark)))
            return
        length = body_at - 4 + len(rewritten)
        self.send(b"".join((length.to_bytes(4), frame[4:body_at], rewritten)))


_GOES_AWAY_ABOVE = 475
"""The ordinal of V5_3_1. Later clients connect again on GO_AWAY, and send the request again."""


def goes_away(header: Header) -> bool:
    """Return True for a request that a draining gateway answers with GO_AWAY."""
    return header.version > _GOES_AWAY_ABOVE and not header.is_one_way
