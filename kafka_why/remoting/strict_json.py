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
_QUOTE_AND_BLANK = (b'" ', b'"\t', b'"\n', b'"\r')
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

    `known` has the names in its types. Optional fields must be UNSET by default, so that encoding the result
    again shows how many names were decoded.
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
    # A quick check: unless a blank follows a quote, each name ends with `":`. Strings may contain `":`, too,
    # so there are at most as many names as `":`. If this number was decoded, no name is repeated or unknown.
    # Most documents have no blanks at all: that takes 0.3 us to check, and the search for quotes followed by
    # blanks 3 us.
    if data.count(_NAME_END) == distinct and (
        len(data.split(None, 1)) == 1 or not any(map(data.__contains__, _QUOTE_AND_BLANK))
    ):
        return
    name_count = _count_names(data)
    if name_count == distinct:
        return
    document = decode(data, _ANYTHING)
    if len(list(_names(document))) != name_count:  # decoding has dropped a repeated name
        raise MalformedFrame("a name occurs twice in an object")
    document.pop(any_names, None)
    folded = set(map(_fold_name, known))
    for name in _names(document):
        if name not in known and (not _PLAIN_NAME.fullmatch(name) or _fold_name(name) in folded):
            raise MalformedFrame(f"name {name!r}")


def _fold_name(name: str) -> str:
    """Return the part of a plain name by which fastjson compares it."""
    return name.lower().removeprefix("is")


def _names(document: Any) -> Iterator[str]:
    """Yield the names in all objects of a decoded document."""
    to_visit = [document]
    while to_visit:
        value = to_visit.pop()
        if isinstance(value, dict):
            yield from value
            to_visit += value.values()
        elif isinstance(value, list):
            to_visit += value


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
    """Yield the tokens of valid JSON: a key that is not a string is encoded as one."""
    matches = tokens(data)
    opened: list[bytes] = []  # the brackets that are not closed yet
    is_key = False
    for match in matches:
        token = match[1]
        if is_key and token not in (b"}", b","):  # these follow an empty object or an extra comma
            yield _read_key(token, matches)
            is_key = False
            continue
        yield token
        if token in (b"{", b"["):
            opened.append(token)
        elif token in (b"}", b"]") and opened:
            opened.pop()
        is_key = token in (b"{", b",") and opened[-1:] == [b"{"]


_DEPTH_CHANGE = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


def _read_key(token: bytes, following: Iterator[re.Match[bytes]]) -> bytes:
    """Return the key that begins with `token`, as a JSON string.

    The tokens of a key that is an object are read from `following`.
    """
    if token.startswith(b'"'):
        return token
    text, depth = token, int(token == b"{")
    while depth:
        match = next(following, None)
        if match is None:
            raise MalformedFrame("a key that does not end")
        text += match[1]
        depth += _DEPTH_CHANGE.get(match[1], 0)
    return msgspec.json.encode(text.decode())
