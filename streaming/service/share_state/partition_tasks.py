"""The initialization and deletion of partitions' states at the share coordinators. No IO, no clock. Rows
SP11, SI10, SI11, SK5, SK8, SK11.

InitializeShareGroupState is not idempotent: repeated with the same state epoch, it discards the group's
progress (row SI11). So each one directly follows a ReadShareGroupStateSummary that found an earlier state
epoch or none, and after an unknown outcome the next one has to wait (`NoOutcome.is_uncertain`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from kafka_why.contract.kafka.share_requests import ShareStatePartition
from kafka_why.contract.messages import ErrorCode
from state.kafka.share.state import RETRIABLE

# The maximum number of partitions in one request. The share coordinator writes a record for each.
BATCH_PARTITIONS = 1_000
# The state epoch of a partition that has no state. A group epoch is greater.
NO_STATE = 0


class SharePartition(NamedTuple):
    """A partition of a share group. Each partition's state has its own share coordinator."""

    group_id: str
    topic_id: UUID
    partition: int


class PartitionTask(NamedTuple):
    """A task for one partition: the initialization or the deletion of its state."""

    task: str  # the name of the group's task that this is a part of
    key: SharePartition
    topic_name: str
    is_deletion: bool
    # Only of an initialization:
    state_epoch: int = 0
    start_offset: int = 0
    is_altered: bool = False  # an administrator has set the start offset


class RecordedState(NamedTuple):
    """A partition's state as its share coordinator recorded it. The epoch is 0 if there is no state."""

    error_code: int
    state_epoch: int
    start_offset: int


class NoOutcome(NamedTuple):
    """The result of an attempt for a partition that has no outcome yet, so that another attempt follows."""

    error_code: int = 0  # the reason, or 0 if no answer came
    is_uncertain: bool = False  # a change was sent and not answered, so a broker may still process it


class NoAnswer(Exception):
    """A request was not answered. If `is_sent`, a broker may have received it, and may still process it."""

    def __init__(self, reason: object, *, is_sent: bool = True) -> None:
        super().__init__(str(reason))
        self.is_sent = is_sent


class NotOwnerNow(Exception):
    """This process may not change state now, because another one may have taken over."""


Result = ShareStatePartition | NoOutcome
Results = dict[SharePartition, Result]
T = TypeVar("T")


class ShareCoordinators(Protocol):
    """The requests to share coordinators.

    All methods raise NoAnswer. The partitions of a request to a node are of one group. Results omit
    partitions that the response lacks. `initialize` and `delete` raise NotOwnerNow if this process may no
    longer change states.
    """

    def find(self, keys: Sequence[SharePartition]) -> Mapping[SharePartition, tuple[int, int]]:
        """Return the coordinator's node id and the error code of each partition."""

    def read(self, node_id: int, keys: Sequence[SharePartition]) -> Mapping[SharePartition, RecordedState]:
        """Send ReadShareGroupStateSummary. Return the state of each partition."""

    def initialize(self, node_id: int, items: Sequence[PartitionTask]) -> Mapping[SharePartition, int]:
        """Send InitializeShareGroupState. Return the error code of each partition."""

    def delete(self, node_id: int, keys: Sequence[SharePartition]) -> Mapping[SharePartition, int]:
        """Send DeleteShareGroupState. Return the error code of each partition."""

    def find_deleted(self, topics: Mapping[UUID, str]) -> Collection[UUID]:
        """Return the ids in `topics` whose topics no longer exist. `topics` maps ids to names."""


def carry_out(items: Sequence[PartitionTask], coordinators: ShareCoordinators) -> Results:
    """Carry out each partition's task, and return the results. If this process may no longer change states,
    the remaining partitions have no result.
    """
    results: Results = {}
    silent_nodes: set[int] = set()  # nodes that have not answered are not tried twice
    for node_id, batch in _batches(_locate(items, coordinators, results)):
        if node_id in silent_nodes:
            results |= {item.key: NoOutcome() for item in batch}
            continue
        change = _delete if batch[0].is_deletion else _initialize
        try:
            results |= change(node_id, batch, coordinators)
        except NotOwnerNow:
            break
        except NoAnswer:
            silent_nodes.add(node_id)
            results |= {item.key: NoOutcome() for item in batch}
    return results


def _locate(
    items: Sequence[PartitionTask], coordinators: ShareCoordinators, results: Results
) -> list[tuple[int, PartitionTask]]:
    """Return the items with their coordinators' nodes. Add a result to `results` for each item whose
    coordinator is not found.
    """
    located: list[tuple[int, PartitionTask]] = []
    has_answer = True
    for batch in _chunks(items):
        nodes_and_codes: Mapping[SharePartition, tuple[int, int]] = {}
        if has_answer:
            try:
                nodes_and_codes = coordinators.find([item.key for item in batch])
            except NoAnswer:
                has_answer = False  # the remaining batches are not tried
        for item in batch:
            node_id, code = nodes_and_codes.get(item.key, (-1, 0))
            if item.key in nodes_and_codes and not code:
                located.append((node_id, item))
            else:
                results[item.key] = _result_of(item.key, code) if code else NoOutcome()
    return located


def _initialize(node_id: int, batch: Sequence[PartitionTask], coordinators: ShareCoordinators) -> Results:
    """Read the recorded states, and initialize the partitions for which `decide` returns None."""
    recorded = coordinators.read(node_id, [item.key for item in batch])
    results: Results = {}
    to_initialize: list[PartitionTask] = []
    for item in batch:
        summary = recorded.get(item.key)
        result = NoOutcome() if summary is None else decide(item, summary)
        if result is None:
            to_initialize.append(item)
        else:
            results[item.key] = result
    codes = _send_change(to_initialize, lambda: coordinators.initialize(node_id, to_initialize))
    for key, code in codes.items():
        if code == ErrorCode.FENCED_STATE_EPOCH:  # a state was recorded since the read
            results[key] = NoOutcome(ErrorCode.FENCED_STATE_EPOCH)
        else:
            results[key] = code if isinstance(code, NoOutcome) else _result_of(key, code)
    return results


def decide(item: PartitionTask, summary: RecordedState) -> Result | None:
    """Return the result for a partition with this recorded state, or None if it has to be initialized.

    With an equal state epoch, the task is already done, because no epoch is used for two states (row SP16). A
    state with another epoch was recorded by another coordinator of the group. It has the group's progress, so
    it is kept. Only a state with a lower epoch is replaced, if an administrator has set another start offset
    (row SK11). A higher epoch is reported, because the group has to adopt it.
    """
    if summary.error_code:
        return _result_of(item.key, summary.error_code)
    if summary.state_epoch == NO_STATE or (summary.state_epoch < item.state_epoch and item.is_altered):
        return None
    if summary.state_epoch <= item.state_epoch:
        return _outcome(item.key)
    return ShareStatePartition(
        item.key.topic_id,
        item.key.partition,
        ErrorCode.FENCED_STATE_EPOCH,
        summary.state_epoch,
        summary.start_offset,
    )


def _delete(node_id: int, batch: Sequence[PartitionTask], coordinators: ShareCoordinators) -> Results:
    """Delete the partitions' states. An unknown partition counts as success if its topic was deleted, because
    the share coordinator itself deletes such a topic's state.
    """
    keys = [item.key for item in batch]
    codes = _send_change(batch, lambda: coordinators.delete(node_id, keys))
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown_topics = {i.key.topic_id: i.topic_name for i in batch if codes[i.key] == unknown}
    deleted_topics = coordinators.find_deleted(unknown_topics) if unknown_topics else ()
    results: Results = {}
    for key, code in codes.items():
        if isinstance(code, NoOutcome):
            results[key] = code
        elif code == unknown and key.topic_id in deleted_topics:
            results[key] = _outcome(key)
        else:
            results[key] = _result_of(key, code)
    return results


def _send_change(
    items: Sequence[PartitionTask], send: Callable[[], Mapping[SharePartition, int]]
) -> dict[SharePartition, int | NoOutcome]:
    """Send a change, and return the error code of each partition, or NoOutcome if it has no answer."""
    if not items:
        return {}
    try:
        codes = send()
    except NoAnswer as error:
        # The outcome of a sent change is unknown.
        return {item.key: NoOutcome(is_uncertain=error.is_sent) for item in items}
    return {item.key: codes.get(item.key, NoOutcome(is_uncertain=True)) for item in items}


def _result_of(key: SharePartition, code: int) -> Result:
    """Return the outcome with this error code, or NoOutcome if another attempt may succeed."""
    # A missing permission may still be granted.
    may_succeed = code in RETRIABLE or code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return NoOutcome(code) if may_succeed else _outcome(key, code)


def _outcome(key: SharePartition, code: int = ErrorCode.NONE) -> ShareStatePartition:
    return ShareStatePartition(key.topic_id, key.partition, code)


def _batches(located: list[tuple[int, PartitionTask]]) -> Iterator[tuple[int, Sequence[PartitionTask]]]:
    """Yield batches of one coordinator and group, with deletions apart from initializations."""

    def batch_key(node_and_item: tuple[int, PartitionTask]) -> tuple[int, str, bool]:
        node_id, item = node_and_item
        return node_id, item.key.group_id, item.is_deletion

    for (node_id, _, _), nodes_and_items in groupby(sorted(located, key=batch_key), batch_key):
        for batch in _chunks([item for _, item in nodes_and_items]):
            yield node_id, batch


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in sequences of at most BATCH_PARTITIONS."""
    for begin in range(0, len(items), BATCH_PARTITIONS):
        yield items[begin : begin + BATCH_PARTITIONS]
