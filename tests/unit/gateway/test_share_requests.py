"""The member id of a ShareFetch or ShareAcknowledge is replaced, and nothing else."""

import pytest

from gateway.wire import codec
from gateway.wire.framing import request_header
from gateway.wire.share_requests import with_member_id
from tests.harness.share_frames import ACKNOWLEDGE, FETCH, fetched


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("group_id", "member_id", "other_id"),
    [("g", "m", "other"), ("", "", ""), ("g" * 126, "m" * 127, "o" * 126), ("ü" * 300, "ü" * 300, "ü" * 63)],
)
def test_a_request_is_the_same_but_for_its_member(
    key: int, version: int, group_id: str, member_id: str, other_id: str
) -> None:
    def request(member_id: str) -> bytes:
        body = fetched("orders", "prices", group_id=group_id, member_id=member_id, offsets=(5, 7))
        return codec.encode_request(key, version, 7, "me", body)

    whole = request(member_id)
    assert with_member_id(request_header(whole), whole, other_id) == request(other_id)
