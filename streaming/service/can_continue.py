"""The check whether a query can continue from its checkpoint: before each start of the query, after each
failed batch, and when the replica sees records disappear. If it cannot, the service ends, because each
further attempt would fail. No batch would then confirm the early answers, which the replica gives before the
query does.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec
import structlog
from kafka import TopicPartition
from kafka.errors import KafkaError
from msgspec import Struct
from msgspec.structs import replace

from checkpoints.checkpoint import Checkpoint
from checkpoints.spark_logs import read_planned
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, number_in_pack, record_of, unpack
from kafka_why.contract.early_answers import EarlyAnswers, commits_of
from kafka_why.local_files import FolderError, LocalFiles
from kafka_why.topic_reader import Record, TopicReader
from streaming.service.topics import FoundTopics, LogAndState, TopicsError, find_topic

# A missing topic may be a new one that a broker does not know yet.
_GONE_AFTER_S = 2.0
_RETRY_S = 0.2
_UNREAD = "(docs/recovery.md, 'Requests that were deleted unread')"


class CannotContinue(FolderError):
    """The query can never continue from its checkpoint. The message has the reason and the remedy."""


class RequestsLost(CannotContinue):
    """Records were deleted before a committed batch handled them.

    `lost` has, by partition, the first lost offset and the offset after the last lost one, or None in place
    of the latter if all later records are lost.
    """

    def __init__(self, message: str, lost: Mapping[int, tuple[int, int | None]]) -> None:
        super().__init__(message)
        self.lost = lost


class TopicLost(RequestsLost):
    """The topic was deleted, or deleted and created again.

    Spark's Kafka clients would wait for minutes in the first case, and continue in the second.
    """


def check_can_continue(client_config: ClientConfig, checkpoint: Checkpoint) -> None:
    """Check the topic, its records and Spark's logs. Raises CannotContinue, FolderError, and KafkaError if no
    broker answers.
    """
    identity = checkpoint.identity()
    topic = identity.requests_topic
    try:
        check_topic(client_config, checkpoint)
    except TopicsError as error:
        raise KafkaError(str(error)) from error
    checkpoint.check_committed(topic)
    _check_records(client_config, topic, handled_ends(checkpoint, topic))


def check_topic(client_config: ClientConfig, checkpoint: Checkpoint) -> None:
    """Check that the requests topic is still that of the state. Without a state nothing is checked.

    Raises CannotContinue and TopicsError.
    """
    pinned = checkpoint.pinned()
    if pinned is None or not pinned.requests_topic_id:
        return
    topic = pinned.requests_topic
    found = _find_topic(client_config, topic)
    all_unhandled = {number: (begin, None) for number, begin in handled_ends(checkpoint, topic).items()}
    is_same_cluster = found.cluster_id == pinned.cluster_id
    if is_same_cluster and not found.ids:
        raise TopicLost(
            f"the topic {topic} does not exist any more, so the state in {checkpoint} cannot continue. "
            f"Requests that were not handled are gone with it {_UNREAD}",
            all_unhandled,
        )
    topic_id, partitions = found.ids.get(topic, ""), found.partitions.get(topic, 0)
    current = replace(
        pinned, cluster_id=found.cluster_id, requests_topic_id=topic_id, request_partitions=partitions
    )
    try:
        checkpoint.pin(current)  # only compares it, because there is a pinned identity
    except FolderError as error:
        if is_same_cluster and topic_id != pinned.requests_topic_id:
            raise TopicLost(str(error), all_unhandled) from error
        raise CannotContinue(str(error)) from error


def handled_ends(checkpoint: Checkpoint, topic: str) -> dict[int, int]:
    """Return the offsets of the first records that no committed batch has handled, by partition."""
    return checkpoint.planned_ends(checkpoint.last_batch("commits"), topic)


def _find_topic(client_config: ClientConfig, topic: str) -> FoundTopics:
    """Return the cluster's entry of a topic, without ids only if it stays missing for _GONE_AFTER_S."""
    give_up_s = time.monotonic() + _GONE_AFTER_S
    while True:
        found = find_topic(client_config, topic)
        if found.ids or time.monotonic() > give_up_s:
            return found
        time.sleep(_RETRY_S)


def _check_records(client_config: ClientConfig, topic: str, begin: Mapping[int, int]) -> None:
    """Check that no partition of the topic ends before its offset in `begin`, and that no record from there
    on was deleted. Raises CannotContinue and KafkaError.
    """
    if not begin:
        return
    partitions = {number: TopicPartition(topic, number) for number in sorted(begin)}
    with TopicReader(client_config) as reader:
        first_offsets, ends = reader.beginnings(partitions.values()), reader.ends(partitions.values())
    deleted = {
        number: (begin[number], first_offsets[partition])
        for number, partition in partitions.items()
        if first_offsets[partition] > begin[number]
    }
    if deleted:
        ranges = ", ".join(f"{topic}[{number}] {low} to {end - 1}" for number, (low, end) in deleted.items())
        raise RequestsLost(
            f"records were deleted before they were handled: {ranges}. The coordinator does not skip them, "
            f"because requests may be among them {_UNREAD}",
            deleted,
        )
    truncated = [f"{topic}[{number}]" for number, key in partitions.items() if ends[key] < begin[number]]
    if truncated:
        raise CannotContinue(
            f"the topic has lost records that were handled: {', '.join(truncated)} ends before the "
            f"offset up to which it was read. Later records at these offsets would be skipped {_UNREAD}"
        )


FILE = "lost-requests.json"
# A margin for the differences of brokers' clocks, which stamp the records.
_CLOCKS_MARGIN_MS = 60_000
_READ_TIMEOUT_MS = 60_000
_LOGGED_GROUPS_MAX = 100
_BEFORE_ALL = (-1, -1)  # a position before that of any request
_COMMIT_TYPES = ("OffsetCommit", "TxnOffsetCommit")

log = structlog.get_logger()


class LostOffset(Struct, frozen=True):
    """The last lost commit of a partition. `offset` is None if no early answer names it."""

    topic: str
    partition: int
    offset: int | None


class LostGroup(Struct, frozen=True):
    """A group with the number of its lost acknowledged requests, and the commits among them."""

    group_id: str
    requests: int
    offsets: list[LostOffset]


class DeletedRange(Struct, frozen=True):
    """A range of records of the requests topic that were deleted before they were handled."""

    partition: int
    from_offset: int
    to_offset: int | None  # the last one; None if all later records are deleted, too


class LostRequests(Struct, frozen=True, kw_only=True):
    """The report on lost requests in the file `FILE`: they were answered, but their records were deleted
    before a committed batch handled them. The answers are still on the responses topic.
    """

    version: int = 1
    at_ms: int
    reason: str
    deleted: list[DeletedRange]
    requests: int
    groups: list[LostGroup]


class _Partition(Struct):
    partition_index: int
    error_code: int = 0


class _Topic(Struct):
    name: str
    partitions: list[_Partition]


class _Answer(Struct):
    """The fields of a response that the report needs."""

    type: str = ""
    request: str = ""
    group_id: str = ""
    error_code: int = 0
    topics: msgspec.Raw = msgspec.Raw(b"[]")

    def commits(self, offsets: list[int]) -> Iterator[LostOffset]:
        """Yield the successful commits in this response. `offsets` are the committed offsets as an early
        answer names them (`kafka_why.contract.early_answers.commits_of`), or [] if it names none.
        """
        if self.type not in _COMMIT_TYPES:
            return
        partitions = [
            (topic.name, partition.partition_index)
            for topic in msgspec.json.decode(self.topics, type=list[_Topic])
            for partition in topic.partitions
            if not partition.error_code
        ]
        has_offsets = len(offsets) == len(partitions)
        offsets_or_none = offsets if has_offsets else [None] * len(partitions)
        for (topic_name, number), offset in zip(partitions, offsets_or_none, strict=True):
            yield LostOffset(topic_name, number, offset)


class LostRequestCollector:
    """A collector of acknowledged requests whose records are lost. `lost` has the lost offsets, as
    `RequestsLost.lost`.
    """

    def __init__(self, topic: str, lost: Mapping[int, tuple[int, int | None]]) -> None:
        self._topic = topic
        self._lost = lost
        self._requests_by_group: dict[str, set[str]] = {}  # ids
        # By group, topic and partition: the last commit, and the offset and position in its pack of its
        # request.
        self._last_commits: dict[tuple[str, str, int], tuple[tuple[int, int], LostOffset]] = {}

    def add(self, record: Record) -> None:
        """Add the answers of a record of the responses topic. The caller omits records whose answers do not
        count. Raises msgspec.DecodeError.
        """
        commits = commits_of(record.headers)
        for number, value in enumerate(unpack(record.value or b"")):
            with suppress(*UNREADABLE):
                self._add_if_lost(msgspec.json.decode(value, type=_Answer), commits.get(number, []))

    def _add_if_lost(self, answer: _Answer, offsets: list[int]) -> None:
        """Add an answer without an error if its request is lost. The last commit of each partition counts."""
        if answer.error_code or not answer.request:
            return
        topic, partition, offset = record_of(answer.request)
        begin, end = self._lost.get(partition, (0, 0))
        if topic != self._topic or offset < begin or (end is not None and offset >= end):
            return
        self._requests_by_group.setdefault(answer.group_id, set()).add(answer.request)
        position = (offset, number_in_pack(answer.request))
        for commit in answer.commits(offsets):
            key = (answer.group_id, commit.topic, commit.partition)
            last_position, last = self._last_commits.get(key, (_BEFORE_ALL, commit))
            # Of the answers to one request, only the early one names the offset.
            if position > last_position or (position == last_position and last.offset is None):
                self._last_commits[key] = (position, commit)

    def groups(self) -> list[LostGroup]:
        """Return the groups, sorted by id."""
        commits: dict[str, list[LostOffset]] = {}
        for (group_id, _, _), (_, commit) in sorted(self._last_commits.items(), key=lambda item: item[0]):
            commits.setdefault(group_id, []).append(commit)
        return [
            LostGroup(group_id, len(requests), commits.get(group_id, []))
            for group_id, requests in sorted(self._requests_by_group.items())
        ]


def find_lost(ours: LogAndState, lost: Mapping[int, tuple[int, int | None]]) -> list[LostGroup]:
    """Return the groups with acknowledged requests among the lost records. Raises KafkaError, FolderError.

    `lost` is as in `RequestsLost`. The responses topic keeps answers for an hour.
    """
    layout, checkpoint = ours.layout, ours.checkpoint
    collector = LostRequestCollector(layout.requests_topic, lost)
    valid_answers = EarlyAnswers()
    batch = checkpoint.last_batch("commits")
    since_ms = 0
    if batch >= 0:  # answers to requests after this batch are later than its plan
        since_ms = (
            read_planned(checkpoint.files, batch, layout.requests_topic).timestamp_ms - _CLOCKS_MARGIN_MS
        )
    numbers = range(layout.reply_partitions)
    partitions = [TopicPartition(layout.responses_topic, number) for number in numbers]
    with TopicReader(ours.client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        ends = reader.ends(partitions)
        begin = {p: at for p, at in reader.offsets_at(partitions, since_ms).items() if at is not None}
        reader.start(at=begin)
        for record in reader.read_to({p: ends[p] for p in begin}, timeout_ms=_READ_TIMEOUT_MS):
            if valid_answers.accepts(record.partition, record.headers):
                with suppress(*UNREADABLE):
                    collector.add(record)
    return collector.groups()


def report_lost(ours: LogAndState, folder: Path, error: RequestsLost) -> None:
    """Log the acknowledged requests that are lost, and write them to `FILE` in the folder."""
    try:
        groups = find_lost(ours, error.lost)
    except (KafkaError, FolderError, OSError) as read_error:
        log.error("the answers to the lost requests cannot be read", error=str(read_error))
        return
    requests = sum(group.requests for group in groups)
    for group in islice(groups, _LOGGED_GROUPS_MAX):
        offsets = {f"{lost.topic}-{lost.partition}": lost.offset for lost in group.offsets}
        log.critical(
            "acknowledged requests are lost", group=group.group_id, requests=group.requests, offsets=offsets
        )
    report = LostRequests(
        at_ms=int(time.time() * 1000),
        reason=str(error),
        deleted=[
            DeletedRange(number, begin, None if end is None else end - 1)
            for number, (begin, end) in sorted(error.lost.items())
        ],
        requests=requests,
        groups=groups,
    )
    path = _write(folder, report)
    log.critical("acknowledged requests that are lost", requests=requests, groups=len(groups), file=path)


@contextmanager
def reporting_losses(ours: LogAndState, folder: Path) -> Iterator[None]:
    """Report the losses if the block raises RequestsLost."""
    try:
        yield
    except RequestsLost as error:
        report_lost(ours, folder, error)
        raise


def _write(folder: Path, report: LostRequests) -> str:
    """Write the report, unless the folder has one with as many requests, and return its path."""
    path = folder / FILE
    with suppress(OSError, msgspec.DecodeError):
        earlier = msgspec.json.decode(path.read_bytes(), type=LostRequests)
        # A state with lost requests never continues, so both are about the same loss. Answers are kept for an
        # hour only, so the earlier report may have more.
        if earlier.requests >= report.requests:
            return str(path)
    try:
        LocalFiles(folder).write(FILE, msgspec.json.format(msgspec.json.encode(report), indent=2))
    except FolderError as error:
        log.error("the lost requests cannot be written", error=str(error))
    return str(path)
