"""The row of an API: how the gateway handles its requests. `gateway.apis` has the tables of rows."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.context import Deferred, RequestContext, Services
from gateway.apis.screened import Screened
from gateway.authorization.acls import Operation
from gateway.wire import codec, offload
from gateway.wire.codec import Fields
from gateway.wire.framing import RequestHeader
from gateway.wire.newer_messages import NewerApiKey
from kafka_why.contract.messages import Response
from kafka_why.wire.schema_reader import Pause

Answer = Fields | Deferred
# Returns when the request's own requests to the coordinator are sent, in order.
Serve = Callable[[RequestContext, Any], Awaitable[Answer]]
ServeAtOnce = Callable[[RequestContext, Any], Answer | None]
Decode = Callable[[RequestHeader, bytes, Pause | None], Any]
Screen = Callable[[RequestContext, bytes], Awaitable[Screened | None]]
Rewrite = Callable[[RequestContext, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """An API that the gateway answers.

    `serve_at_once` never waits. If it returns None, `serve` has to look something up. Without `serve` it
    answers every request. `decode` raises ProtocolError.

    `parks` is the class of the coordinator's answer to a request that it may park. If `asks_coordinator` is
    False, the request itself is answered without the coordinator. If `is_metered`, requests count for
    clients' quotas. If `is_exclusive`, a connection has no concurrent request. If `of_consumer_protocol`,
    ApiVersions omits the API while that protocol is switched off. `error_code` returns the error in a
    coordinator's answer, for the metrics. `is_for_broker` returns True if a broker has to answer a request,
    `is_passed` if brokers answer all requests of the API.
    """

    key: ApiKey
    serve: Serve | None = None
    serve_at_once: ServeAtOnce | None = None
    decode: Decode = codec.decode_request
    parks: type[Response] | None = None
    asks_coordinator: bool = True
    is_metered: bool = True
    is_exclusive: bool = False
    of_consumer_protocol: bool = False
    error_code: Callable[[Any], int] = lambda answer: getattr(answer, "error_code", 0)
    is_for_broker: Callable[[Any], bool] | None = None
    is_passed: Callable[[Services], bool] | None = None
    versions: range = range(0)
    """The codec's versions, if none are given."""
    needs_capacity: bool = field(init=False)
    """True if it needs capacity at the coordinator. A request that may be parked waits for its turn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self.versions or codec.versions(self.key))
        object.__setattr__(self, "needs_capacity", self.asks_coordinator and self.parks is None)

    def passes(self, services: Services) -> bool:
        """Return True if brokers answer all requests of the API."""
        return self.is_passed is not None and self.is_passed(services)

    async def decoded(self, header: RequestHeader, message: bytes) -> Any:
        """Decode a request, off the event loop if it is large. Raises ProtocolError."""
        if len(message) <= offload.AT_ONCE_BYTES:
            return self.decode(header, message, None)
        return await offload.run(self.decode, header, message, offload.pause)

    async def answer(self, context: RequestContext, request: Any) -> Answer:
        """Answer a request, which may have to wait."""
        if self.serve is not None:
            return await self.serve(context, request)
        assert self.serve_at_once is not None, "a row has a handler"
        answer = self.serve_at_once(context, request)
        assert answer is not None, "it is the only handler"
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """An API that brokers answer, and whose requests the gateway checks or whose responses it changes. Five
    screens may remove entries from a request and complete the response: `guard` those that the ACLs forbid,
    `groups` those that the coordinator answers, `brokers` the coordinator's settings among a broker's,
    `internal` changes of the coordinator's own topics, `screen` those special to the API. A request without a
    guard needs the operation `needs` on the cluster, or a super user, unless Kafka has no ACLs for it
    (`is_free`) or `screen` checks them (`is_screened`). With `is_hidden` it is absent from ApiVersions while
    the gateway checks ACLs.

    `rewrite` changes the responses for which `is_rewritten` returns true. `is_rewritten` gets the version and
    the bytes, and raises ProtocolError.
    """

    key: ApiKey | NewerApiKey
    guard: Screen | None = None
    groups: Screen | None = None
    brokers: Screen | None = None
    internal: Screen | None = None
    screen: Screen | None = None
    needs: Operation | None = None
    is_free: bool = False
    is_screened: bool = False
    is_hidden: bool = False
    rewrite: Rewrite | None = None
    is_rewritten: Callable[[int, bytes], bool] = lambda version, response: True
    versions: range | None = None
    """The codec's versions, if none are given. None: all, because the gateway has no schema of the API."""

    def __post_init__(self) -> None:
        if self.versions is None and self.key in codec.REQUESTS:
            object.__setattr__(self, "versions", codec.versions(self.key))
