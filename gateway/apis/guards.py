"""How the requests that pass to the brokers are checked: what several APIs share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from gateway.apis.context import RequestContext
from gateway.apis.screened import Screened
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.upstream.cluster import TOPIC_AGE_MAX_S
from gateway.wire import beside
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError

ERRORS: Mapping[ResourceType, GatewayError] = MappingProxyType(
    {
        ResourceType.TOPIC: GatewayError.TOPIC_AUTHORIZATION_FAILED,
        ResourceType.GROUP: GatewayError.GROUP_AUTHORIZATION_FAILED,
        ResourceType.CLUSTER: GatewayError.CLUSTER_AUTHORIZATION_FAILED,
        ResourceType.TRANSACTIONAL_ID: GatewayError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


TopicKey = str | UUID


@dataclass(frozen=True, slots=True)
class Entries:
    """How to check an API with one list of resources. The fields are the list's names in the request and in
    the response. `error` is the error of an entry, None if the client may do what it asks. `refused` returns
    the response's entry for a refused one.
    """

    request_field: str
    response_field: str
    error: Callable[[RequestContext, Any], GatewayError | None]
    refused: Callable[[Any, GatewayError], Fields]

    async def guard(self, context: RequestContext, message: bytes) -> Screened | None:
        """See `gateway.apis.passed_on.guard`."""
        request = await beside.decode_passed(context.header, message)
        entries: list[Any] = getattr(request, self.request_field) or []
        errors = await context.slices().each(partial(self.error, context), entries)
        if not any(errors):
            return None
        kept = [entry for entry, error in zip(entries, errors, strict=True) if error is None]
        setattr(request, self.request_field, kept)
        remaining = await beside.with_body(context.header, message, request) if kept else None
        refused = await beside.made(message, self._refused, entries, errors)
        return Screened(remaining, {self.response_field: refused})

    def _refused(self, entries: Iterable[Any], errors: Iterable[GatewayError | None]) -> list[Fields]:
        return [
            self.refused(entry, error)
            for entry, error in zip(entries, errors, strict=True)
            if error is not None
        ]


def may_on_cluster(context: RequestContext, operation: Operation) -> bool:
    """Whether the client may do this to the cluster."""
    return context.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)


async def topic_errors(
    context: RequestContext,
    topics: Iterable[TopicKey],
    operation: Operation,
    age_max_s: float = TOPIC_AGE_MAX_S,
) -> Mapping[TopicKey, GatewayError]:
    """The errors of the topics that the client may not use, by name or id. An id without a known topic is one
    of them, because nothing tells which ACLs are about it. `age_max_s`: of the metadata. Raises UpstreamLost.
    """
    wanted = set(topics)
    ids = [key for key in wanted if isinstance(key, UUID)]
    found = await context.services.cluster.topics_by_id(ids, age_max_s) if ids else {}
    errors, slices = dict[TopicKey, GatewayError](), context.slices()
    for key in wanted:
        await slices.rest()
        topic = found.get(key) if isinstance(key, UUID) else None
        name = key if isinstance(key, str) else None if topic is None else topic.name
        if name is None:
            errors[key] = GatewayError.UNKNOWN_TOPIC_ID
        elif not context.may(operation, ResourceType.TOPIC, name):
            errors[key] = GatewayError.TOPIC_AUTHORIZATION_FAILED
    return errors
