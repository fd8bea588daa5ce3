"""The client of name servers and brokers, at a server of the test."""

import asyncio

import pytest

from kafka_why.remoting.client import AclCredentials, RemotingClient, signed
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, encode_frame, response_to
from kafka_why.remoting.strict_json import MalformedFrame
from tests.unit.kafka_why.remoting_server import at_server


@pytest.mark.parametrize(
    ("token", "signature"), [(None, "ONfrj2eFl3yuFbWJRaYrP4J5Wts="), ("tok", "lIFq3iho5K9FctQV5QLHiJENsn4=")]
)
def test_signature_is_that_of_acl_client_rpc_hook(token: str | None, signature: str) -> None:
    fields = signed({"consumerGroup": "grün", "a": "1"}, b"body", AclCredentials("ak", "secret", token))
    assert fields.pop("Signature") == signature
    assert fields.get("SecurityToken") == token


def test_responses_in_another_order_reach_their_requests() -> None:
    held: list[Header] = []

    def answer(request: Header, body: bytes) -> bytes:
        held.append(request)
        if len(held) < 2:
            return encode_frame(Header(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, request.opaque, flag=2))
        return b"".join(
            encode_frame(response_to(one, one.code, "no", one.ext_fields), str(one.code).encode())
            for one in reversed(held)
        )

    async def use(address: str) -> None:
        client = await RemotingClient.open(address, credentials=("ak", "secret"))
        (first, one), (second, other) = await asyncio.gather(
            client.invoke(RequestCode.GET_MAX_OFFSET, {"topic": "a"}),
            client.invoke(RequestCode.GET_MIN_OFFSET, {"topic": "b"}),
        )
        await client.close()
        assert (first.code, first.ext_fields["topic"], one) == (30, "a", b"30")
        assert (second.code, second.ext_fields["topic"], other) == (31, "b", b"31")
        assert {header.ext_fields["AccessKey"] for header in (first, second)} == {"ak"}
        with pytest.raises(ConnectionError):
            await client.invoke(RequestCode.GET_MAX_OFFSET)

    asyncio.run(at_server(answer, use))


@pytest.mark.parametrize(
    ("answered", "error"), [(b"", ConnectionError), (b"HTTP/1.1 400 Bad Request", MalformedFrame)]
)
def test_connection_that_fails_is_reported(answered: bytes, error: type[Exception]) -> None:
    async def use(address: str) -> None:
        client = await RemotingClient.open(address)
        with pytest.raises(error):
            await client.invoke(RequestCode.GET_MAX_OFFSET)
        with pytest.raises(ConnectionError):
            await client.invoke(RequestCode.GET_MAX_OFFSET)
        await client.close()

    asyncio.run(at_server(lambda _header, _body: answered, use))


def test_late_response_leaves_the_connection_usable() -> None:
    held: list[Header] = []

    def answer(request: Header, body: bytes) -> bytes:
        held.append(request)
        answered = held if len(held) == 2 else []
        frames = b"".join(encode_frame(response_to(one, 0, ext_fields=one.ext_fields)) for one in answered)
        return frames or encode_frame(response_to(Header(0, -1), 0))

    async def use(address: str) -> None:
        client = await RemotingClient.open(address)
        with pytest.raises(TimeoutError):
            await client.invoke(RequestCode.GET_MAX_OFFSET, {"topic": "a"}, timeout_s=0.01)
        header, _ = await client.invoke(RequestCode.GET_MAX_OFFSET, {"topic": "b"})
        await client.close()
        assert header.ext_fields == {"topic": "b"}

    asyncio.run(at_server(answer, use))
