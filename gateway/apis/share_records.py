"""ShareFetch (key 78) and ShareAcknowledge (key 79), which pass to the leaders of the partitions.

A broker keeps the share session of a member, and releases what the member has acquired when the connection of
the session ends. So these requests pass on the client's own connection to the broker.
"""

from typing import Any

from gateway.apis.authorized import GROUP_REFUSED, may_read_group
from gateway.apis.context import RequestContext
from gateway.apis.guards import topic_errors
from gateway.apis.screened import Screened
from gateway.authorization.acls import Operation
from gateway.log_text import quoted
from gateway.wire import beside
from gateway.wire.framing import ProtocolError

_INITIAL_EPOCH = 0  # ShareRequestMetadata


async def screen_session(context: RequestContext, message: bytes) -> Screened | None:
    """READ on the group, and on each topic of the session: one topic that is denied refuses the request.
    Raises ProtocolError if the connection has another member's session.
    """
    request = await beside.decode_passed(context.header, message)
    session = context.remembered.shares
    if request.group_id is None or request.member_id is None:
        return None  # the broker refuses it
    if not session.is_of(request.group_id, request.member_id):
        raise ProtocolError(f"a share session of {quoted(request.member_id)} beside another member's")
    authorizer = context.services.authorizer
    if authorizer is None or not context.services.checks_passed_on:
        return _counted(context, message, request)
    if not may_read_group(context, request.group_id):
        return Screened(None, GROUP_REFUSED)
    version = authorizer.version
    if request.share_session_epoch == _INITIAL_EPOCH:
        session.topics.clear()
    named = {topic.topic_id for topic in request.topics or ()}
    asked = named if session.version == version else named | session.topics
    errors = await topic_errors(context, asked, Operation.READ)
    if errors:
        return Screened(None, {"error_code": next(iter(errors.values()))})
    session.topics |= named
    session.version = version
    return _counted(context, message, request)


def _counted(context: RequestContext, message: bytes, request: Any) -> Screened | None:
    deliveries = context.services.deliveries
    if deliveries is None:
        return None
    return Screened(message, {}, sees=context.remembered.shares.watch(deliveries, context.header, request))
