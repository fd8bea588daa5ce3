"""The parts of a scenario command: words, `name=value` options, times such as `3s`, ids such as `@m1`."""

import re
import shlex
from collections.abc import Mapping, Sequence

from kafka_why.contract.kafka.requests import Protocol
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def split(command: str) -> tuple[list[str], dict[str, str]]:
    words, options = [], {}
    for part in shlex.split(command):
        name, equals, value = part.partition("=")
        if equals:
            options[name] = value
        else:
            words.append(part)
    return words, options


def milliseconds(text: str) -> int:
    """Parse `3s`, `250ms`, `5m` or a bare number of milliseconds."""
    match = re.fullmatch(r"(-?\d+)(ms|s|m|h|d)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no time")
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def setting(text: str) -> str | int:
    """Parse a setting's value: a time as in `milliseconds`, or any other text."""
    return milliseconds(text) if re.match(r"-?\d", text) else text


def time_text(at_ms: int) -> str:
    """Return the inverse of `milliseconds`, in the shortest exact form."""
    return f"{at_ms // 1_000}s" if at_ms % 1_000 == 0 else f"{at_ms}ms"


def partitions(text: str) -> list[tuple[str, list[tuple[int, str]]]]:
    """Parse `t-0=5,t-1=7,u-0`: by topic, in order, each partition's number and the text after `=`."""
    topics: dict[str, list[tuple[int, str]]] = {}
    for part in text.split(","):
        partition, _, value = part.partition("=")
        topic, dash, number = partition.rpartition("-")
        if dash:
            topics.setdefault(topic, []).append((int(number), value))
    return list(topics.items())


def counts(text: str) -> dict[str, int]:
    """Parse `t:3,u:1`: the count of each name."""
    pairs = [part.partition(":") for part in text.split(",") if part]
    return {name: int(count) for name, _, count in pairs}


def protocols(
    text: str,
    topics: str | None = None,
    metadata: str | None = None,
    *,
    owned: Mapping[str, Sequence[int]] | None = None,
    version: int = 1,
) -> list[Protocol]:
    """Parse `range:meta,roundrobin`: protocol names with or without metadata.

    Names without metadata all get the same: a subscription to `topics`, `t,u`, or else `metadata`. With
    `owned` partitions the subscription has the version `version`, without it version 0.
    """
    if topics is not None or metadata is not None:
        names = tuple(filter(None, (topics or "").split(",")))
        partitions = tuple(TopicPartition(t, n) for t, numbers in (owned or {}).items() for n in numbers)
        subscription = Subscription(names, owned_partitions=partitions)
        shared_metadata = encode_subscription(subscription, version=0 if owned is None else version)
        if metadata is not None:
            shared_metadata = metadata.encode()
        return [Protocol(name, shared_metadata) for name in text.split(",") if name]
    pairs = [part.partition(":") for part in text.split(",") if part]
    return [Protocol(name, metadata.encode()) for name, _, metadata in pairs]


def assignment(text: str) -> bytes:
    """Parse `foo-0+foo-1` as an assignment of these partitions, and other text as bytes."""
    parts = [part.rpartition("-") for part in text.split("+")]
    if not all(topic and number.isdigit() for topic, _, number in parts):
        return text.encode()
    return encode_assignment(Assignment(tuple(TopicPartition(t, int(n)) for t, _, n in parts)), version=1)
