"""Decoders of JSON that RocketMQ's parser, fastjson, reads or writes. The strict decoder refuses a document
that fastjson reads differently from msgspec. The lenient decoder accepts keys that are objects, or numbers
without quotes.

fastjson accepts more than JSON: comments, single quotes, names without quotes, trailing commas, `\\x41`,
classes under `@type`, and a name that occurs twice. msgspec accepts only the last of these, and the strict
decoder refuses it. Both parsers ignore unknown names, such as those of later clients. But fastjson takes
`client_id` and `isClientID` for `clientID`, so the strict decoder refuses such names, too.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs
from msgspec.json import Decoder

T = TypeVar("T")

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NAME_END = b'":'
_NAME_ENDS_LATER = (b'" ', b'"\t', b'"\n', b'"\r')
_PLAIN_NAME = re.compile("[A-Za-z][A-Za-z0-9]*")


_ANYTHING = Decoder(dict[str, Any])


class MalformedFrame(ValueError):
    """The error of bytes that are not a frame of RocketMQ's protocol, or have two meanings."""


def decode(data: bytes, decoder: Decoder[T]) -> T:
    """Decode a document. Raises MalformedFrame. The caller refuses repeated names by `check_names`."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from None


def decode_body(data: bytes, decoder: Decoder[T], known: frozenset[str]) -> T:
    """Decode a document, and refuse repeated names. Raises MalformedFrame.

    `known` are the names in its types. Optional fields must be UNSET by default.
    """
    decoded = decode(data, decoder)
    check_names(data, _count_names(msgspec.json.encode(decoded)), known)
    return decoded


def names_of(*kinds: type[Struct]) -> frozenset[str]:
    """Return the names of the fields of structs."""
    return frozenset(field.encode_name for kind in kinds for field in structs.fields(kind))


def check_names(data: bytes, distinct: int, known: frozenset[str], any_names: str = "") -> None:
    """Raise MalformedFrame if an object has a name twice, or a name that fastjson takes for one of `known`.

    `data` is a valid document. `distinct` is the number of names that were decoded. The object `any_names`
    may have any names.
    """
    # A quick check: without blanks before colons, there are at most as many names as `":`, which strings may
    # contain, too.
    if data.count(_NAME_END) == distinct and not any(map(data.__contains__, _NAME_ENDS_LATER)):
        return
    number = _count_names(data)
    if number == distinct:
        return
    document = decode(data, _ANYTHING)
    if len(list(_names(document))) != number:
        raise MalformedFrame("a name occurs twice in an object")
    document.pop(any_names, None)
    folded = set(map(_folded, known))
    for name in _names(document):
        if name not in known and (not _PLAIN_NAME.fullmatch(name) or _folded(name) in folded):
            raise MalformedFrame(f"name {name!r}")


def _folded(name: str) -> str:
    return name.lower().removeprefix("is")


def _names(document: Any) -> Iterator[str]:
    """Yield the names in all objects of a decoded document."""
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from value
            left += value.values()
        elif isinstance(value, list):
            left += value


def _count_names(document: bytes) -> int:
    """Return the number of names in all objects of a valid document."""
    return _STRING.sub(b"", document).count(b":")


_TOKEN = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+)', re.DOTALL)


def tokens(data: bytes) -> Iterator[re.Match[bytes]]:
    """Yield a match for each token, which is its group 1. Raises MalformedFrame."""
    at, end = 0, len(data.rstrip())
    while at < end:
        token = _TOKEN.match(data, at)
        if token is None:
            raise MalformedFrame(f"no token at byte {at}")
        yield token
        at = token.end()


def decode_leniently(data: bytes, kind: type[T]) -> T:
    """Decode a document. A key that is an object becomes a string. Raises MalformedFrame."""
    try:
        return msgspec.json.decode(b"".join(_as_json(data)), type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from None


def _as_json(data: bytes) -> Iterator[bytes]:
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
