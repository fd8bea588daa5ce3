"""What a client may not do with the requests that pass to the brokers: by the ACLs, and by the rule that the
coordinator's own topics are not for clients to change.
"""

from gateway.apis import internal_topics, passed_on
from gateway.apis.context import RequestContext
from gateway.apis.screened import Screened, both


def is_needed(context: RequestContext) -> bool:
    """Whether `screen` may have something to say about such a request."""
    return context.services.checks_passed_on or context.header.api_key in internal_topics.SCREENED


async def screen(context: RequestContext, message: bytes) -> Screened | None:
    """Screen a request that passes to a broker. Returns None if it may pass unchanged. Raises ProtocolError,
    UpstreamLost.
    """
    by_acls = await passed_on.guard(context, message) if context.services.checks_passed_on else None
    remaining = message if by_acls is None else by_acls.remaining
    if remaining is None or context.header.api_key not in internal_topics.SCREENED:
        return by_acls
    by_topics = await internal_topics.screen(context, remaining)
    if by_acls is None or by_topics is None:
        return by_acls or by_topics
    return both(by_acls, by_topics)
