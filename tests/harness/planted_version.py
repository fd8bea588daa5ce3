"""Two invented earlier state versions: in version 2 a classic group had no `wanted_topics`, in version 1 also
no `topics`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import defstruct
from msgspec.structs import asdict, fields

from checkpoints import codec
from checkpoints.codec import EARLIER, Migration
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.group import ConfigsOnly
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from state.rocketmq.group import RocketMqGroup

ADDED = "added"
"""The value that the migration of version 2 gives to the new field."""


def _without(*names: str) -> Any:
    return defstruct(
        "ClassicGroup",
        [(field.name, field.type) for field in fields(ClassicGroup) if field.name not in names],
        array_like=True,
        forbid_unknown_fields=True,
        tag="Kafka",
    )


_CLASSIC = {1: _without("wanted_topics", "topics"), 2: _without("wanted_topics")}
_OTHERS = ConsumerGroup | ShareGroup | StreamsGroup | ConfigsOnly | RocketMqGroup


def _to_2(group: Any) -> Any:
    return _CLASSIC[2](**asdict(group), topics={}) if isinstance(group, _CLASSIC[1]) else group


def _to_3(group: Any) -> Any:
    return ClassicGroup(**asdict(group), wanted_topics=[ADDED]) if isinstance(group, _CLASSIC[2]) else group


@contextmanager
def planted() -> Iterator[None]:
    """Let this process read the two versions until the block ends."""
    EARLIER.update({1: Migration(_CLASSIC[1] | _OTHERS, _to_2), 2: Migration(_CLASSIC[2] | _OTHERS, _to_3)})
    try:
        yield
    finally:
        del EARLIER[1], EARLIER[2]


def entry_of(version: int, group: AnyGroup, next_deadline_ms: int | None = None) -> codec.StoredGroup:
    if version != codec.STATE_VERSION and isinstance(group, ClassicGroup):
        kind = _CLASSIC[version]
        group = kind(**{name: getattr(group, name) for name in kind.__struct_fields__})
    return codec.StoredGroup(version, next_deadline_ms, codec.encode_group(group, None).group)


def row_of(version: int, groups: Mapping[str, AnyGroup]) -> tuple[int, bytes]:
    _, payload = codec.write_row({name: entry_of(version, group) for name, group in groups.items()})
    return version, payload
