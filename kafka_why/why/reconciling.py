"""Tracks which partitions the members of a consumer, share or streams group have, give up and wait for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_why.contract.kafka.history import SHARE, STREAMS, EntryType, HistoryEntry, MemberState
from kafka_why.contract.protocols.streams_protocol import ACTIVE, role_and_task, task_holder
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition, by_topic
from kafka_why.grouping import grouped
from kafka_why.why.model import AwaitedPartitions, Idle, Progress
from kafka_why.why.moves import Partitions

_NOTHING: Partitions = frozenset()


def flat(partitions: Mapping[str, Iterable[int]] | None) -> Partitions:
    """Return the partitions of all topics as one set."""
    return frozenset(TopicPartition(topic, n) for topic, ns in (partitions or {}).items() for n in ns)


def partition_count(partitions: Mapping[str, Sequence[int]] | None) -> int:
    """Return the number of partitions of all topics."""
    return sum(map(len, (partitions or {}).values()))


@dataclass(slots=True)
class _MemberProgress:
    """A member's progress in the current rebalance, from which a `Progress` is built."""

    revoked: set[TopicPartition] = field(default_factory=set)  # that it was asked to give up
    revoking_ms: int | None = None  # longest time that it took to give partitions up
    # Partitions that it waited for, each with the member that had it, or None if that member had left.
    waited_for: dict[TopicPartition, MemberId | None] = field(default_factory=dict)
    waiting_since_ms: int | None = None
    waited_until_ms: int | None = None
    settled_ms: int | None = None  # when it reached its target assignment; None if it has not
    # If it has to give up partitions, the time from the request until it is removed for not doing so.
    fenced_after_ms: int | None = None


class ReconciliationTracker:
    """A tracker of each member's partitions during rebalances. `begin` starts a rebalance.

    The argument `assigned` has the partitions before the first entry, or is None if they are unknown.
    """

    def __init__(self, assigned: Mapping[MemberId, Partitions] | None) -> None:
        self.assigned: dict[MemberId, Partitions] = dict(assigned or {})  # that each member may use
        self.processes: dict[MemberId, str] = {}  # in a streams group, the id of each member's process
        self.is_complete = assigned is not None  # True if `assigned` has all members
        self._revoking: dict[MemberId, Partitions] = {}  # that each member has not given up yet
        self._progress: dict[MemberId, _MemberProgress] = {}  # in the current rebalance
        self._free_since_ms: dict[TopicPartition, int] = {}  # since when no member may use the partition
        self._idle_ms: dict[TopicPartition, int] = {}  # in the current rebalance
        self._longest_ms = 0  # the longest of these times without a break

    def begin(self) -> None:
        """Begin a rebalance. Partitions that are already free count as idle in it, too."""
        self._progress, self._idle_ms, self._longest_ms = {}, {}, 0

    def lose_track(self) -> None:
        """Forget the members' partitions. They may have changed, because entries are missing."""
        self.assigned, self._revoking, self.is_complete = {}, {}, False
        self._free_since_ms = {}

    def apply(self, event: HistoryEntry) -> None:
        """Apply the next entry of the history."""
        member_id = event.member_id
        if member_id is not None and event.process_id is not None:
            self.processes[member_id] = event.process_id
        match event.type:
            case EntryType.MEMBER_ADDED if member_id is not None:
                self.assigned.setdefault(member_id, _NOTHING)
            case EntryType.MEMBER_REPLACED if member_id is not None:
                self._replace(event.replaced_member_id or "", member_id)
            case EntryType.MEMBER_REMOVED if member_id is not None:
                self._set(member_id, _NOTHING, event)
                self.assigned.pop(member_id, None)
                self._revoking.pop(member_id, None)
            case EntryType.MEMBER_RECONCILED if member_id is not None:
                self._reconcile(member_id, event)
            case EntryType.SHARE_PARTITIONS_INITIALIZED:
                free = flat(event.partitions).difference(*self.assigned.values())
                self._free_since_ms.update(dict.fromkeys(free, event.at_ms))
            case EntryType.STABLE if event.members is not None:
                self.is_complete = self.assigned.keys() >= set(event.members)
            case EntryType.EMPTY:
                self.assigned, self._revoking, self.is_complete = {}, {}, True
            case EntryType.GROUP_CONVERTED if event.targets is not None:
                self.assigned = {m: flat(partitions) for m, partitions in event.targets.items()}
                self.is_complete = True

    def _replace(self, old_id: MemberId, new_id: MemberId) -> None:
        """Give a static member that came back its new id."""
        for partitions in (self.assigned, self._revoking):
            if old_id in partitions:
                partitions[new_id] = partitions.pop(old_id)
        if old_id in self._progress:
            self._progress[new_id] = self._progress.pop(old_id)

    def _reconcile(self, member_id: MemberId, event: HistoryEntry) -> None:
        """Apply an entry with the partitions that a member may now use, has to give up, and waits for."""
        progress = self._progress.setdefault(member_id, _MemberProgress())
        revoking, awaiting = flat(event.revoking), flat(event.awaiting)
        revoking_before = self._revoking.get(member_id, _NOTHING)
        if revoking_before and event.took_ms is not None:
            progress.revoking_ms = max(event.took_ms, progress.revoking_ms or 0)
        if revoking - revoking_before:
            progress.revoked |= revoking
        if newly_awaited := sorted(awaiting - progress.waited_for.keys()):
            progress.waited_for |= self._holders(member_id, newly_awaited, event.group_type)
        if awaiting and progress.waiting_since_ms is None:
            progress.waiting_since_ms = event.at_ms
        if not awaiting and progress.waiting_since_ms is not None and progress.waited_until_ms is None:
            progress.waited_until_ms = event.at_ms
        deadline_ms = event.deadline_ms if revoking else None
        progress.fenced_after_ms = None if deadline_ms is None else deadline_ms - event.at_ms
        self._revoking[member_id] = revoking
        self._set(member_id, flat(event.assigned), event)
        is_stable = event.member_state == MemberState.STABLE
        is_at_target = is_stable and event.member_epoch == event.assignment_epoch
        progress.settled_ms = event.at_ms if is_at_target else None

    def _holders(
        self, member_id: MemberId, awaited: Iterable[TopicPartition], group_type: str
    ) -> dict[TopicPartition, MemberId | None]:
        """Return the holder of each partition that `member_id` awaits, or None if the holder has left."""
        held = self._held()
        if group_type == STREAMS:
            return {p: task_holder(p, member_id, held, self.processes) for p in awaited}
        holders = {
            p: holder for holder, partitions in held.items() for p in partitions if holder != member_id
        }
        return {p: holders.get(p) for p in awaited}

    def _held(self) -> dict[MemberId, Partitions]:
        """Return the partitions that each member may use or has not given up yet."""
        return {
            m: self.assigned.get(m, _NOTHING) | self._revoking.get(m, _NOTHING)
            for m in {**self.assigned, **self._revoking}
        }

    def _set(self, member_id: MemberId, partitions: Partitions, event: HistoryEntry) -> None:
        """Set the partitions that a member may use, and record how long its new ones had no consumer."""
        before, at_ms = self.assigned.get(member_id, _NOTHING), event.at_ms
        freed_partitions = before - partitions
        if event.group_type == SHARE:  # other members may have them, too
            freed_partitions -= _NOTHING.union(*(held for m, held in self.assigned.items() if m != member_id))
        for partition in freed_partitions:
            self._free_since_ms[partition] = at_ms
        for partition in partitions - before:
            if event.group_type == STREAMS and role_and_task(partition)[0] != ACTIVE:
                continue  # a standby task does not consume
            since_ms = self._free_since_ms.pop(partition, at_ms)
            if at_ms > since_ms:
                self._idle_ms[partition] = self._idle_ms.get(partition, 0) + at_ms - since_ms
                self._longest_ms = max(self._longest_ms, at_ms - since_ms)
        self.assigned[member_id] = partitions

    def idle(self) -> Idle:
        """Return the idle time of partitions that had no consumer and now have one.

        A partition is idle from the response that took it from one member until the response that gave it to
        the next.
        """
        return Idle(len(self._idle_ms), sum(self._idle_ms.values()), self._longest_ms)

    def progress(self, began_ms: int) -> list[Progress]:
        """Return the progress of the members that gave up, waited for or got partitions."""
        return [
            Progress(
                member_id=member_id,
                revoked=by_topic(progress.revoked),
                revoking_ms=None if self._revoking.get(member_id) else progress.revoking_ms,
                waited_for=[
                    AwaitedPartitions(by_topic(awaited), holder)
                    for holder, awaited in grouped((h, p) for p, h in progress.waited_for.items()).items()
                ],
                waiting_ms=(
                    None
                    if progress.waited_until_ms is None or progress.waiting_since_ms is None
                    else progress.waited_until_ms - progress.waiting_since_ms
                ),
                settled_after_ms=None if progress.settled_ms is None else progress.settled_ms - began_ms,
                fenced_after_ms=progress.fenced_after_ms,
            )
            for member_id, progress in self._progress.items()
        ]
