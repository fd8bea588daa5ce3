"""Compares the gateway's reading of a request with Kafka's reading of the same bytes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kafka.protocol.api_key import ApiKey
from kafka.protocol.data_container import DataContainer

from gateway.wire import codec
from gateway.wire.framing import ProtocolError, expects_response, request_header
from kafka_why.wire.schema_reader import ELEMENTS_MAX
from tests.harness.kafkas_reader import KafkasReader, Reading


class Finding(NamedTuple):
    """A request that the gateway and Kafka read differently."""

    message: bytes
    why: str


class Judge:
    """Compares the readings, and counts the outcomes."""

    def __init__(self, kafka: KafkasReader) -> None:
        self._kafka = kafka
        self.counts: Counter[str] = Counter()
        self.passed: Counter[tuple[int, int]] = Counter()
        """Requests that may pass, by API and version."""

    def findings(self, messages: Sequence[bytes]) -> list[Finding]:
        """Return the requests among these that break a rule."""
        found: list[Finding] = []
        asked: list[tuple[bytes, bytes, str]] = []
        for message, kafkas in zip(messages, self._kafka.read(messages), strict=True):
            try:
                asked += self._judged(message, kafkas)
            except _Broken as why:
                found.append(Finding(message, str(why)))
        # What both read, as Kafka reads it, without the tags that neither knows.
        theirs = self._kafka.read([message for message, _, _ in asked], known_only=True)
        ours = self._kafka.read([mine for _, mine, _ in asked], known_only=True)
        found += [
            Finding(message, why)
            for (message, _, why), one, other in zip(asked, theirs, ours, strict=True)
            if one.written != other.written or not one.written
        ]
        return found

    def _judged(self, message: bytes, kafkas: Reading) -> Iterator[tuple[bytes, bytes, str]]:
        """Yield what is to be compared: the request, our encoding of it, and the rule. Raises _Broken."""
        self.counts["requests"] += 1
        passing, answered = _read(message, codec.decode_passed), _read(message, codec.decode_request)
        _compare_acks(message, answered)
        if answered is None:
            self._refused(message, kafkas, passing)
            return
        if kafkas.refusal or kafkas.unread:
            raise _Broken(f"the gateway reads what Kafka does not: {kafkas.refusal or kafkas.unread}")
        header = request_header(message)
        mine = codec.with_body(header, message, answered)
        if passing is None:
            self.counts["only answered: it has unknown tags"] += 1
            if mine == message and message[header.client_id_end] == 0:
                raise _Broken("the gateway does not pass what it would write")
        else:
            self.counts["may pass"] += 1
            self.passed[header.api_key, header.api_version] += 1
            if mine != message and not _has_default_tags(passing):
                raise _Broken("what may pass has another encoding")
        if mine != kafkas.written:
            yield message, mine, "the gateway and Kafka read different requests"

    def _refused(self, message: bytes, kafkas: Reading, passing: Any) -> None:
        if passing is not None:
            raise _Broken("the gateway passes what it does not answer")
        if kafkas.refusal:
            self.counts["refused by both"] += 1
            return
        self.counts["refused by the gateway alone"] += 1
        if kafkas.written == message and len(message) < ELEMENTS_MAX:
            raise _Broken("the gateway refuses what Kafka writes")


class _Broken(Exception):
    """Raised if a rule is broken."""


def _read(message: bytes, decode: Any) -> Any:
    try:
        return decode(request_header(message), message)
    except ProtocolError:
        return None


def _compare_acks(message: bytes, request: Any) -> None:
    """Read the acks of a Produce as for one that passes unread, and nothing else of it: `request`, or None if
    the general reader refuses it. Raises _Broken.
    """
    if int.from_bytes(message[:2]) == ApiKey.Produce:
        expected = _read(message, expects_response)
        if request is not None and expected != (request.acks != 0):
            raise _Broken("a Produce has other acks")


def _has_default_tags(part: Any) -> bool:
    """Return True if a tagged field is there with its default value. Kafka's writer leaves it out."""
    if isinstance(part, list):
        return any(map(_has_default_tags, part))
    if not isinstance(part, DataContainer):
        return False
    for name, field in type(part).fields.items():
        try:
            value = type(part).__dict__[name].__get__(part)
        except AttributeError:
            continue  # it is not there
        if (field.tag is not None and value == field.default) or _has_default_tags(value):
            return True
    return False
