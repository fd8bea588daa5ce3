"""JSON that fastjson, RocketMQ's parser, reads in the same way as msgspec.

fastjson accepts more than JSON: comments, single quotes, names without quotes, trailing commas, `\\x41`,
classes under `@type`, and a name that occurs twice. msgspec accepts none of these but the last, which is
refused here.
"""

import re
from typing import TypeVar

import msgspec
from msgspec.json import Decoder

T = TypeVar("T")

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NAME_END = b'":'
_NAME_ENDS_LATER = (b'" ', b'"\t', b'"\n', b'"\r')


class MalformedFrame(ValueError):
    """The error of bytes that are not a frame of RocketMQ's protocol, or that could be read in two ways."""


def decode(data: bytes, decoder: Decoder[T]) -> T:
    """Decode a document. The caller has to refuse repeated names (`check_names`). Raises MalformedFrame."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from None


def decode_body(data: bytes, decoder: Decoder[T]) -> T:
    """Decode a document, and refuse repeated names. All optional fields of its types must be UNSET by
    default. Raises MalformedFrame.
    """
    decoded = decode(data, decoder)
    check_names(data, _count_names(msgspec.json.encode(decoded)))
    return decoded


def check_names(data: bytes, distinct: int) -> None:
    """Raise MalformedFrame unless a valid document has `distinct` names. If it has more, one occurs twice."""
    # A quick check: without blanks before colons, there are at most as many names as `":`, which strings may
    # contain, too.
    if data.count(_NAME_END) == distinct and not any(map(data.__contains__, _NAME_ENDS_LATER)):
        return
    if _count_names(data) != distinct:
        raise MalformedFrame("a name occurs twice in an object")


def _count_names(document: bytes) -> int:
    """Return the number of names in all objects of a valid document."""
    return _STRING.sub(b"", document).count(b":")
