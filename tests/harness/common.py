"""What the harness's own clients share."""

from collections.abc import Iterable
from typing import TypedDict

from state.dispatch import AnyEffects, AnyGroup
from state.kafka.effects import Effects
from state.kafka.group import Group


class Common(TypedDict):
    """The fields every request has."""

    group_id: str
    correlation_id: str
    reply_partition: int
    api_version: int
    client_id: str


def kafka_effects(steps: Iterable[AnyEffects]) -> list[Effects]:
    """The steps of a group that is Kafka's."""
    effects = list(steps)
    assert all(isinstance(step, Effects) for step in effects)
    return effects  # type: ignore[return-value]


def kafka_group(group: AnyGroup | None) -> Group | None:
    """A group that is Kafka's, if there is one."""
    assert group is None or isinstance(group, Group)
    return group
