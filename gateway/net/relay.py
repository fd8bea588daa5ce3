"""Responses of a broker that pass to the client as they come, as fast as the client reads them."""

from gateway import apis
from gateway.apis.screened import Screened
from gateway.net.stream import ClientStream, Place
from gateway.upstream.connections import READ_BYTES, Upstream, UpstreamLost
from gateway.wire.fetch_tail import WITH_RECORDS, tail_of
from gateway.wire.framing import RequestHeader, correlation_id_of, size_prefix

HELD_MAX_BYTES = READ_BYTES
"""Smaller responses are held whole: one write costs less than two."""

# What of a response is looked at: its correlation id, and the session's id in that to a Fetch.
_HEAD_BYTES = 16


def passes(header: RequestHeader, screened: Screened | None) -> bool:
    """Whether a large response to this request may pass without being decoded."""
    if screened is not None and screened.changes_response:
        return False
    api = apis.PASSED.get(header.api_key)
    return api is None or api.rewrite is None or header.api_key in WITH_RECORDS


def _unseen(_: bytes) -> None:
    pass


async def relay(
    upstream: Upstream,
    client: ClientStream,
    header: RequestHeader,
    place: Place,
    screened: Screened | None,
) -> None:
    """Pass the broker's next response on. Raises UpstreamLost, ProtocolError."""
    left = await upstream.next_bytes()
    prefix = size_prefix(left)
    part = await upstream.receive_part()
    while len(part) < _HEAD_BYTES:
        part += await upstream.receive_part()
    if correlation_id_of(part) != header.correlation_id:
        raise UpstreamLost("the broker answers something else than what was asked")
    sees = _unseen if screened is None or screened.sees is None else screened.sees
    if screened is not None and screened.saw is not None:
        screened.saw(part)
    sees(part)
    tail = tail_of(header)
    while left := left - len(part):
        passed = part if tail is None else tail.feed(part)
        await client.answer_in_part(place, prefix + passed)
        prefix = b""
        part = await upstream.receive_part()
        sees(part)
    last = part if tail is None else tail.feed(part) + tail.end()
    client.answer(place, prefix + last if prefix else last)
