"""Helpers that the harness's clients share."""

from collections.abc import Iterable
from typing import NotRequired, TypedDict

from state.dispatch import AnyEffects, AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import Effects, KafkaGroup
from state.kafka.group import ConfigsOnly
from state.timeline import Row, Timeline


class Common(TypedDict):
    """The fields of every request."""

    group_id: str
    correlation_id: str
    reply_partition: int
    api_version: int
    client_id: str
    principal: NotRequired[str | None]


def kafka_effects(steps: Iterable[AnyEffects]) -> list[Effects]:
    effects = list(steps)
    assert all(isinstance(step, Effects) for step in effects)
    return effects  # type: ignore[return-value]


def kafka_group(group: AnyGroup | None) -> KafkaGroup | None:
    """Return the Kafka group, or None if there is no group or only settings of its id."""
    assert group is None or isinstance(group, KafkaGroup | ConfigsOnly)
    return None if isinstance(group, ConfigsOnly) else group


def classic_group(group: AnyGroup | None) -> ClassicGroup | None:
    """Return the classic group, or None if there is no group."""
    assert group is None or isinstance(group, ClassicGroup)
    return group


def apply_rows(timeline: Timeline, rows: Iterable[Row]) -> Timeline:
    """Apply the rows of the timeline's group, and return the timeline."""
    for row in rows:
        if row.request.group_id == timeline.group_id:
            timeline.apply(row)
    return timeline
