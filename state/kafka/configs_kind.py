"""The settings of a group id that has no group, to the timeline and to readers: they have no deadline."""

from collections.abc import Sequence

from kafka_why.contract.group_type import GroupType
from kafka_why.contract.kafka.snapshot import ConfigsView
from kafka_why.contract.messages import ErrorResponse
from state.config import CoordinatorConfig
from state.kafka.configs_only import ConfigsOnly
from state.kafka.effects import Effects, unchanged
from state.kafka.timers import DeadlineReached
from state.protocol import StoredKind


class ConfigsKind(StoredKind[ConfigsOnly, DeadlineReached]):
    """See `StoredKind`."""

    group_type = GroupType.KAFKA
    group_class = ConfigsOnly

    def next_deadline_ms(self, group: ConfigsOnly, config: CoordinatorConfig) -> None:
        return None

    def due_deadlines(
        self, group: ConfigsOnly, until_ms: int, config: CoordinatorConfig
    ) -> Sequence[DeadlineReached]:
        return ()

    def is_armed(self, group: ConfigsOnly, deadline: DeadlineReached, config: CoordinatorConfig) -> bool:
        return False

    def view(self, group: ConfigsOnly) -> ConfigsView:
        return ConfigsView(group.group_id, group.incarnation, group.seq, group.clock_ms, group.configs)

    def refused(self, group: ConfigsOnly, answers: Sequence[tuple[int, ErrorResponse]]) -> Effects:
        return unchanged(group, answers)


CONFIGS_ONLY = ConfigsKind()
