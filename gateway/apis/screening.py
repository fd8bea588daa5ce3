"""What is taken out of requests that pass to the brokers: what the ACLs forbid, what the coordinator answers,
what is its own among the settings of brokers, and what would change the coordinator's own topics.
"""

from collections.abc import Iterator
from functools import partial

from gateway import apis
from gateway.apis import passed_on
from gateway.apis.api import Screen
from gateway.apis.context import RequestContext
from gateway.apis.screened import Screened, both


def is_needed(context: RequestContext) -> bool:
    """Whether `screen` may have something to say about such a request."""
    return next(_screens(context), None) is not None


async def screen(context: RequestContext, message: bytes) -> Screened | None:
    """Screen a request that passes to a broker. Returns None if it may pass unchanged. Raises ProtocolError,
    UpstreamLost.
    """
    screened: Screened | None = None
    for one in _screens(context):
        remaining = message if screened is None else screened.remaining
        if remaining is None:
            break
        screened = _joined(screened, await one(context, remaining))
    return screened


def _joined(first: Screened | None, second: Screened | None) -> Screened | None:
    if first is None or second is None:
        return first or second
    return both(first, second)


def _screens(context: RequestContext) -> Iterator[Screen]:
    """What screens such a request, in this order."""
    api = apis.PASSED.get(context.header.api_key)
    if context.services.checks_passed_on:
        yield partial(passed_on.guard, api)
    if api is None:
        return
    services = context.services
    if api.groups is not None and (services.consumer_protocol or services.share_groups.are_ours):
        yield api.groups
    if api.brokers is not None:
        yield api.brokers
    if api.internal is not None:
        yield api.internal
    if api.screen is not None:
        yield api.screen
