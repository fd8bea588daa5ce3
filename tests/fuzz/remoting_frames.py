"""Makes frames of RocketMQ's remoting protocol, well-formed and damaged in every part that has a form of its
own: names, texts, numbers, values, blanks, lengths, ends.
"""

import json
from collections.abc import Callable, Sequence
from random import Random
from struct import pack
from typing import Any, TypeVar

from kafka_why.remoting.frames import LANGUAGES

T = TypeVar("T")
Damages = tuple[tuple[float, int], ...]

DAMAGES: Damages = ((0.0, 0), (0.01, 1), (0.01, 1), (0.03, 1), (0.1, 1), (0.02, 2), (0.05, 5), (0.3, 1_000))
"""The share of parts that are damaged, and how many at most: one of these for each frame. A heartbeat has
some hundred parts.
"""
INTACT: Damages = ((0.0, 0),)


def _words(text: str) -> list[str]:
    return text.split()


_CODES = (10, 34, 34, 34, 35, 38, 41, 42, 400, 401)
_TEXTS = (
    "g",
    "orders",
    "%RETRY%g",
    "x" * 255,
    "10.0.0.1@7#9",
    "grün €",
    "😀",
    'a "b" \\ /',
    ":1",
    "null",
    "",
)
_BLANKS = ("", "", "", " ", "\n", "\t\r")
_DAMAGED_BLANKS = ("/**/", "//x\n", "#x\n", "\0", "\xa0", "\ufeff", "\f", "\v", "\u2028", "\x1a", ",")
# Surrogates are bytes that are no UTF-8.
_DAMAGED_TEXTS = (
    *_words(r"""'x' x "\x41" "\v" "\u0041" "\ud800" "\udc00\ud800" "\ud83d\ude00" "\/"
    "\u0000" "\1" "\a" "\u00" "\u+041"
    "@type" "$ref" "1" "-5" "+5" "007" "5.0" "1e2" "true" "NULL" "" "x"""),
    *('"\udcff"', '"\udced\udca0\udc80"', '"\udcc0\udc80"', '"\t"', '"\x7f"', '"\x1a"', r'"\ "', '" x"'),
    '"' + "x" * 1_025 + '"',
)  # fmt: skip
_DAMAGED_NUMBERS = (
    *_words("""{}.0 {}.5 0{} +{} -{} {}e0 {}E2 "{}" -0 0x1F {}L {}B 1e400 NaN Infinity -Infinity
    .5 5. 2147483647 2147483648
    -2147483649 9223372036854775808"""),
    "1" * 30,
)  # fmt: skip
_DAMAGED_VALUES = (
    *_words("""null true false "true" 1 [] {} "" [null] [1,2] {"a":1} {"$ref":"$"}
    {"@type":"java.lang.String"} undefined Set[1] x'00' Date(1)"""),
    "new Date(1)", "[" * 9 + "]" * 9, "[" * 3_000,
)  # fmt: skip
_REFERENCES = ('{"$ref":"$"}', '{"$ref":".."}', '{"@type":"java.util.HashMap"}')
_DAMAGED_NAMES: tuple[Callable[[str], str], ...] = (
    *(lambda name, form=form: form.format(name) for form in ("'{}'", "{}", '"{}x"', '" {}"', '"is{}"')),
    *(lambda name, to=to: f'"{to(name)}"' for to in (str.upper, str.lower, str.title, str.swapcase)),
    *(lambda name, whole=whole: whole for whole in ('"@type"', '"$ref"', '""', "1")),
    lambda name: f'"{name[:2]}_{name[2:]}"',
    lambda name: f'"\\u{ord(name[:1] or "x"):04x}{name[1:]}"',
    lambda name: f'"\\x{ord(name[:1] or "x"):02x}{name[1:]}"',
)
_MORE_MEMBERS = _words("unknown suspended body type @type $ref customHeader code clientId topic")
_LENGTHS = (-1, -(2**31), 0, 2**31 - 1, 262_145)
_ENUMERATIONS: dict[str, Sequence[str | int]] = {
    "messageModel": ("CLUSTERING", "BROADCASTING", "Clustering", "BroadCasting", 0, 1),
    "consumeType": ("CONSUME_PASSIVELY", "CONSUME_ACTIVELY", "CONSUME_POP", 0, 1, 2),
    "consumeFromWhere": ("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP", *range(6)),
    "mode": ("PULL", "POP", "Pop", 0, 1),
}


class RemotingFrames:
    """A source of random frames without their lengths. The same `random` gives the same frames."""

    def __init__(self, random: Random, damages: Damages = DAMAGES) -> None:
        self._random = random
        self._damages = damages
        self._rate, self._left = 0.0, 0

    def next(self) -> bytes:
        """Return a frame from its header word on. Half of the damaged ones are damaged in the body alone."""
        rate, left = self._one(self._damages)
        code = self._one(_CODES)
        body = self._body(code)
        self._rate, self._left = rate, 0 if body is not None and self._flag() else left
        word_and_header = self._word_and_header(code)
        self._left = left
        return word_and_header + (b"" if body is None else self._document(body))

    def _word_and_header(self, code: int) -> bytes:
        serialization = int(self._random.random() < 0.3)
        header = self._rocketmq_header(code) if serialization else self._document(self._header(code))
        size = len(header) + (self._one((-1, 1, 3, 2**23)) if self._hits() else 0)
        if self._hits():
            serialization = self._one((0, 1, 2, 127, 255))
        word = (serialization << 24 | max(size, 0) & 0xFFFFFF).to_bytes(4, "big")
        return word + (self._damaged(header) if self._hits() else header)

    def _header(self, code: int) -> dict[str, Any]:
        header: dict[str, Any] = {"code": code, "opaque": self._random.getrandbits(31)}
        more = {
            "flag": self._one((0, 0, 1, 2, 3)),
            "language": self._one(LANGUAGES),
            "version": self._one((0, 317, 513)),
            "remark": self._one((None, "", "no", *_TEXTS)),
            "serializeTypeCurrentRPC": self._one(("JSON", "ROCKETMQ")),
            "extFields": {self._text(): self._field() for _ in range(self._random.randrange(5))},
        }
        return header | {name: value for name, value in more.items() if self._random.random() < 0.8}

    def _field(self) -> Any:
        return self._one((*_TEXTS, 12, -3, 10**25, True, False, None))

    def _body(self, code: int) -> dict[str, Any] | None:
        group = {"consumerGroup": self._name(), "clientId": self._name()}
        match code:
            case 34:
                return self._heartbeat()
            case 41 | 42:
                queues = [self._queue() for _ in range(self._random.randrange(4))]
                return {**group, "mqSet": queues, "onlyThisBroker": self._flag()}
            case 400:
                return {
                    **group,
                    "topic": self._name(),
                    "strategyName": self._one((None, "AVG")),
                    **self._enumeration("messageModel"),
                }
            case 401:
                number = {"popShareQueueNum": self._one((-1, 0, 3))}
                return {
                    "consumerGroup": self._name(),
                    "topic": self._name(),
                    **self._enumeration("mode"),
                    **number,
                }
        return None

    def _heartbeat(self) -> dict[str, Any]:
        return {
            "clientID": self._name(),
            "producerDataSet": [{"groupName": self._name()} for _ in range(self._random.randrange(3))],
            "consumerDataSet": [self._consumer(f"g{number}") for number in range(self._random.randrange(3))],
            "heartbeatFingerprint": self._one((0, -5, 2**31 - 1)),
            "withoutSub": self._flag(),
        }

    def _consumer(self, group_id: str) -> dict[str, Any]:
        return {
            "groupName": group_id,
            **self._enumeration("messageModel"),
            **self._enumeration("consumeType"),
            **self._enumeration("consumeFromWhere"),
            "subscriptionDataSet": [self._subscription(f"t{n}") for n in range(self._random.randrange(3))],
            "unitMode": self._flag(),
        }

    def _subscription(self, topic: str) -> dict[str, Any]:
        subscription = {
            "topic": topic,
            "subString": self._text(),
            "subVersion": self._one((1, -1, 1_700_000_000_000, "1700000000000", "-7")),
        }
        more = {
            "expressionType": self._one(("TAG", "SQL92", "")),
            "tagsSet": self._one((None, [], [self._text(), self._text()])),
            "codeSet": self._one((None, [], [97, -98], ["97", "-98"])),
            "classFilterMode": self._flag(),
        }
        return subscription | {name: value for name, value in more.items() if self._random.random() < 0.8}

    def _queue(self) -> dict[str, Any]:
        return {"topic": self._name(), "brokerName": self._name(), "queueId": self._one((-1, 0, 7))}

    def _enumeration(self, name: str) -> dict[str, Any]:
        return {name: self._one(_ENUMERATIONS[name])}

    def _flag(self) -> bool:
        return self._random.random() < 0.5

    def _text(self) -> str:
        return self._one(_TEXTS)

    def _name(self) -> str:
        return self._text() or "g"

    def _one(self, choices: Sequence[T]) -> T:
        return self._random.choice(choices)

    def _document(self, value: dict[str, Any]) -> bytes:
        text = self._blank() + self._json(value) + self._blank()
        document = text.encode("utf-8", "surrogateescape")
        return self._damaged(document) if self._hits() else document

    def _json(self, value: Any) -> str:
        if self._hits():
            return self._one(_REFERENCES if isinstance(value, dict) and self._flag() else _DAMAGED_VALUES)
        match value:
            case dict():
                return self._object(value)
            case list():
                items = [self._json(item) for item in value]
                if items and self._hits():
                    items.append(items[0])
                return "[" + self._joined(items) + "]"
            case bool() | None:
                return json.dumps(value)
            case int():
                return self._one(_DAMAGED_NUMBERS).format(value) if self._hits() else str(value)
        if self._hits():
            return self._one((*_DAMAGED_TEXTS, json.dumps(value.lower()), json.dumps(value.upper())))
        return json.dumps(value, ensure_ascii=self._flag())

    def _object(self, value: dict[str, Any]) -> str:
        members = list(value.items())
        if self._hits():
            members.append((self._one((*value, *_MORE_MEMBERS)), self._one((*value.values(), *_TEXTS, 1))))
        if members and self._hits():
            members.pop(self._random.randrange(len(members)))
        if self._random.random() < 0.3:
            self._random.shuffle(members)
        return "{" + self._joined([self._member(name, item) for name, item in members]) + "}"

    def _member(self, name: str, value: Any) -> str:
        quoted = self._one(_DAMAGED_NAMES)(name) if self._hits() else json.dumps(name)
        return f"{quoted}{self._blank()}:{self._blank()}{self._json(value)}"

    def _joined(self, parts: list[str]) -> str:
        end = self._one((",", ";", ",,")) if self._hits() else ""
        return f"{self._blank()},{self._blank()}".join(parts) + end

    def _blank(self) -> str:
        if self._random.random() > 0.1:
            return ""
        return self._one(_DAMAGED_BLANKS if self._hits() else _BLANKS)

    def _rocketmq_header(self, code: int) -> bytes:
        language = self._one((14, -1, 127)) if self._hits() else self._random.randrange(len(LANGUAGES))
        names = [self._name() for _ in range(self._random.randrange(5))]
        if not self._hits():
            names = list(dict.fromkeys(names))
        fields = b"".join(self._sized(">h", name) + self._sized(">i", self._text()) for name in names)
        fixed = pack(
            ">hbhii", code, language, self._one((0, 513)), self._random.getrandbits(31), self._one((0, 1, 2))
        )
        size = self._one((*_LENGTHS, len(fields) - 1, len(fields) + 1)) if self._hits() else len(fields)
        header = fixed + self._sized(">i", self._text()) + pack(">i", size) + fields
        return self._damaged(header) if self._hits() else header

    def _sized(self, form: str, text: str) -> bytes:
        encoded = self._one((b"\xff", b"\xed\xa0\x80", b"")) if self._hits() else text.encode()
        size = len(encoded)
        if self._hits():
            size = self._one((*_LENGTHS, size - 1, size + 1))
        return pack(form, size if form == ">i" else (size + 2**15) % 2**16 - 2**15) + encoded

    def _damaged(self, data: bytes) -> bytes:
        at = self._random.randrange(len(data) + 1)
        match self._random.randrange(4):
            case 0:
                return data[:at]
            case 1:
                return data + self._one((b"\0", b" ", b"}", b"{}", b"x"))
            case 2:
                return data[:at] + self._random.randbytes(1) + data[at + 1 :]
        return data[:at] + self._random.randbytes(self._random.randint(1, 3)) + data[at:]

    def _hits(self) -> bool:
        """Return True if this part is to be damaged."""
        if not self._left or self._random.random() >= self._rate:
            return False
        self._left -= 1
        return True
