"""JSON whose keys may be numbers without quotes, or objects, as fastjson writes maps with such keys."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from kafka_why.remoting.strict_json import MalformedFrame

_TOKEN = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+)', re.DOTALL)


def tokens(data: bytes) -> Iterator[re.Match[bytes]]:
    """Yield a match whose group 1 is the token, for each string, punctuation mark and other token. Raises
    MalformedFrame.
    """
    at, end = 0, len(data.rstrip())
    while at < end:
        token = _TOKEN.match(data, at)
        if token is None:
            raise MalformedFrame(f"no token at byte {at}")
        yield token
        at = token.end()


def decode(data: bytes, kind: Any) -> Any:
    """Decode a document of this type. A key that is an object becomes a string. Raises MalformedFrame."""
    try:
        return msgspec.json.decode(b"".join(_as_json(data)), type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from None


def _as_json(data: bytes) -> Iterator[bytes]:
    """Yield the tokens of the document with each key as a string."""
    found = tokens(data)
    opened: list[bytes] = []
    is_key = False
    for match in found:
        token = match[1]
        if is_key and token not in (b"}", b","):
            yield _key(token, found)
            is_key = False
            continue
        yield token
        if token in (b"{", b"["):
            opened.append(token)
        elif token in (b"}", b"]") and opened:
            opened.pop()
        is_key = token in (b"{", b",") and opened[-1:] == [b"{"]


def _key(token: bytes, following: Iterator[re.Match[bytes]]) -> bytes:
    if token.startswith(b'"'):
        return token
    text, depth = token, int(token == b"{")
    while depth:
        match = next(following, None)
        if match is None:
            raise MalformedFrame("a key that does not end")
        text += match[1]
        depth += (match[1] in (b"{", b"[")) - (match[1] in (b"}", b"]"))
    return msgspec.json.encode(text.decode())
