"""The groups of a partition that may stand otherwise on the groups topic than they are.

The query writes a group's view with its batch. A replica that answers earlier knows which groups have changed
since the last batch that is committed, and tells ListGroups what these are now.
"""

from collections import OrderedDict

from kafka_why.contract.kafka.responses import DEAD, ListedGroup
from state.dispatch import AnyGroup
from state.kafka.effects import KafkaGroup
from streaming.query.handling import AwakeGroup

# More changed groups, or longer ids, are not listed: the query's answer is waited for.
LISTED_MAX = 1_000
LISTED_MAX_CHARS = 256 * 1024


class ChangedGroups:
    """The ids of groups, each with the place in the log at which the group changed last: the offset behind
    it, and the time on which the change acted.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, group: AwakeGroup, end: int, at_ms: int) -> None:
        """A group was used. Whatever a list shows of it changes with an entry of its history only."""
        if group.version != group.version_noted:
            group.version_noted = group.version
            group_id = group.timeline.group_id
            self._places[group_id] = end, at_ms
            self._places.move_to_end(group_id)

    def committed(self, end: int, watermark_ms: int) -> None:
        """The query has read up to this offset, and fired the deadlines before this time."""
        while self._places:
            group_id = next(iter(self._places))
            changed_end, at_ms = self._places[group_id]
            if changed_end > end or at_ms >= watermark_ms:
                return
            del self._places[group_id]

    def ids(self) -> list[str] | None:
        """The groups that may have changed, None if there are too many."""
        if len(self._places) > LISTED_MAX or sum(map(len, self._places)) > LISTED_MAX_CHARS:
            return None
        return list(self._places)


def listed(group_id: str, group: AnyGroup | None) -> ListedGroup:
    """What ListGroups shows of what is stored of a group id. RocketMQ's groups, and settings without a group,
    are not listed.
    """
    if not isinstance(group, KafkaGroup):
        return ListedGroup(group_id, DEAD)
    return ListedGroup(group_id, group.state.value, group.protocol_type or "", group.type_name)
