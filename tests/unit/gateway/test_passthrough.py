"""The user's name in a SASL exchange that passes to the broker, as the gateway reads it."""

import base64

import msgspec
import pytest

from gateway.upstream.passthrough import CannotRead, name_in


def token(**claims: object) -> bytes:
    """Return the first message of OAUTHBEARER with a token that has these claims."""
    parts = [{"alg": "none"}, claims]
    encoded = b".".join(base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=") for part in parts)
    return b"n,,\x01auth=Bearer " + encoded + b".\x01\x01"


@pytest.mark.parametrize(
    ("mechanism", "first", "name"),
    [
        ("PLAIN", b"\0ann\0secret", "ann"),
        ("PLAIN", b"ann\0ann\0secret", "ann"),
        ("PLAIN", "\0zoë\0secret".encode(), "zoë"),
        ("SCRAM-SHA-256", b"n,,n=ann,r=abc", "ann"),
        ("SCRAM-SHA-512", b"n,a=ann,n=ann,r=abc,tokenauth=false", "ann"),
        ("SCRAM-SHA-512", b"n,,n=a=2Cb=3Dc,r=abc", "a,b=c"),
        ("SCRAM-SHA-512", b"n,,n=a=3D2C,r=abc", "a=2C"),  # unescaped once only
        ("OAUTHBEARER", token(sub="ann"), "ann"),
        ("OAUTHBEARER", token(sub=" ann\n"), "ann"),
        ("OAUTHBEARER", b"n,a=ann," + token(sub="ann")[3:], "ann"),
        ("OAUTHBEARER", token(sub="ann")[:-1] + b"traceId=1\x01\x01", "ann"),
    ],
)
def test_passthrough_name_is_read_from_first_sasl_message(mechanism: str, first: bytes, name: str) -> None:
    assert name_in(mechanism, first) == name


@pytest.mark.parametrize(
    ("mechanism", "first"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"ann"),
        ("PLAIN", b"\0\0secret"),
        ("PLAIN", b"\0\xff\0secret"),
        ("SCRAM-SHA-256", b""),
        ("SCRAM-SHA-256", b"n,,n=,r=abc"),
        ("SCRAM-SHA-256", b"n,,m=later,n=ann,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=\xff,r=abc"),
        ("OAUTHBEARER", b"\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer abc\x01\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer a.b.c\x01\x01"),
        ("OAUTHBEARER", token(name="ann")),
        ("OAUTHBEARER", token(sub=7)),
        ("OAUTHBEARER", token(sub="")),
        ("OAUTHBEARER", token(sub=" \x01")),
        ("OAUTHBEARER", token(sub="ann").replace(b"Bearer", b"Basic")),
        # The broker's pattern for a=... allows control characters, but no second "=".
        ("OAUTHBEARER", b"n,a=x\x01y," + token(sub="ann")[3:]),
    ],
)
def test_sasl_message_without_a_name_is_refused(mechanism: str, first: bytes) -> None:
    with pytest.raises(CannotRead):
        name_in(mechanism, first)


def test_a_delegation_token_is_refused_because_its_owner_is_not_in_the_message() -> None:
    with pytest.raises(CannotRead, match="owner"):
        name_in("SCRAM-SHA-256", b"n,,n=token-id,r=abc,tokenauth=true")
