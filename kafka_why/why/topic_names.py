"""The names of deleted topics. A group forgets the name of a topic when it is deleted, so later entries have
the topic's id in its place.
"""

from collections.abc import Mapping
from uuid import UUID

from msgspec import structs

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import NamedPartitions
from kafka_why.contract.protocols.subscriptions import MemberId


class TopicNames:
    """Puts names in the place of the ids of deleted topics, as far as earlier entries of the same read show
    them: a member that had partitions under a name has the same partitions under an id, and none under the
    name.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._had: dict[MemberId, NamedPartitions] = {}

    def put_in(self, event: HistoryEntry) -> HistoryEntry:
        """Return the entry with `orders (deleted)` for an id that is known to be that of orders."""
        if event.type is EntryType.MEMBER_RECONCILED and event.member_id is not None:
            self._learn(event.member_id, event)
        elif event.type is EntryType.MEMBER_REPLACED and event.member_id is not None:
            self._had[event.member_id] = self._had.pop(event.replaced_member_id or "", {})
        if not self._names:
            return event
        named = {field: self._named(getattr(event, field)) for field in ("assigned", "revoking", "awaiting")}
        targets = event.targets
        if targets is not None:
            targets = {member_id: self._named(has) or {} for member_id, has in targets.items()}
        return structs.replace(event, **named, targets=targets)

    def _learn(self, member_id: MemberId, event: HistoryEntry) -> None:
        had, has = self._had.get(member_id, {}), {**(event.assigned or {})}
        for topic, numbers in (event.revoking or {}).items():
            has[topic] = sorted({*has.get(topic, ()), *numbers})
        gone = [topic for topic in had if topic not in has and not _is_id(topic)]
        for topic_id in has.keys() - had.keys() - self._names.keys():
            fitting = [name for name in gone if had[name] == has[topic_id]] if _is_id(topic_id) else []
            if len(fitting) == 1:
                self._names[topic_id] = f"{fitting[0]} (deleted)"
        self._had[member_id] = has

    def _named(self, partitions: Mapping[str, list[int]] | None) -> NamedPartitions | None:
        if partitions is None:
            return None
        return {self._names.get(topic, topic): numbers for topic, numbers in partitions.items()}


def _is_id(topic: str) -> bool:
    """Whether it is a topic id in the form of the history. A topic may have such a name."""
    try:
        return str(UUID(topic)) == topic
    except ValueError:
        return False
