"""A poller that asks the brokers for rebalancing classic groups, and writes these to the sightings topic.

A rebalance of a classic group appears in `__consumer_offsets` only when it is over. ListGroups by state and
DescribeGroups show it while it is running. The poller writes each such sighting as a record, so the output of
the observer's query depends on records alone.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import structlog
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import GroupState, OffsetSpec
from kafka.errors import IncompatibleBrokerVersion, KafkaError, UnsupportedVersionError
from msgspec import Struct, field

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import encode
from kafka_why.contract.sightings import (
    MEMBERS_MAX,
    SeenMember,
    SightingRecord,
    sighting_key,
)
from kafka_why.observed.consumer_offsets.schemas import kafka_partition
from kafka_why.topic_reader import FollowerThread
from streaming.observing.operator import SOURCE

GROUPS_MAX = 2_000
"""The maximum number of groups followed at a time."""
# The maximum number of polled end offsets of a partition. The oldest ones suffice, because the query reaches
# them first.
_ENDS_MAX = 64
# An ended run is dropped after this time, even if its last record was not written yet.
_FORGET_S = 600.0


class SeenGroup(NamedTuple):
    """A rebalancing group: its state, and its members, or None if the group could not be described."""

    state: str
    members: tuple[SeenMember, ...] | None


class _RebalanceRun(Struct):
    """A series of polls that showed one rebalance of a group, as did all complete polls in between."""

    run_id: str  # `SightingRecord.run`
    # The start of the last complete poll before the series, which did not show the rebalance.
    not_yet_s: float
    first_s: float  # the end of the first poll of the series
    seen_s: float  # the end of the latest poll of the series
    seen: SeenGroup  # the group in that poll
    over_s: float | None = None  # the end of the first complete poll that did not show it, None until then


class _PolledEnd(NamedTuple):
    """The end offset of a partition at one poll."""

    queried_s: float  # the time before the request
    offset: int


class _PolledEnds(Struct):
    """The end offsets of a partition of `__consumer_offsets`, as polls showed them.

    They show up to which time the query has read: once it has read up to a polled end offset, that offset
    leaves `ahead`, and its `queried_s` becomes `read_s`.
    """

    # End offsets that the query has not reached yet, the lowest first.
    ahead: list[_PolledEnd] = field(default_factory=list)
    read_s: float | None = None  # the query has read all records that were appended before this time


class RebalanceRuns:
    """The rebalances that polls of the brokers show, as records of the sightings topic. No IO.

    A run is an unbroken series of polls that show one rebalance of a group. A complete poll is one that every
    broker has answered. A run begins with a poll that shows a rebalance which the last complete poll did not
    show, so the rebalance began between these two polls. The first complete poll that no longer shows it
    ends the run. The run's last record, which says that the rebalance is over, is written once the query has
    read the group's partition of `__consumer_offsets` up to that poll.

    Times are seconds of a monotonic clock. `partitions` is the number of partitions of `__consumer_offsets`.
    """

    def __init__(self, partitions: int, new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._partitions = partitions
        self._new_run_id = new_name
        self._open_runs: dict[str, _RebalanceRun] = {}  # by group id
        # Ended runs whose last record `records` has not yielded yet, by group id.
        self._ended_runs: dict[str, _RebalanceRun] = {}
        # Groups without a run that the last complete poll showed rebalancing. Their rebalance gets no run,
        # because it is unknown when it began.
        self._without_begin: frozenset[str] = frozenset()
        self._complete_poll_s: float | None = None  # when the last complete poll began
        self._polled_ends: dict[int, _PolledEnds] = {}  # by partition of `__consumer_offsets`

    def choose(self, listed: set[str]) -> list[str]:
        """Return the listed groups to follow. Groups that are already followed come first."""
        return sorted(listed, key=lambda group_id: (group_id not in self._open_runs, group_id))[:GROUPS_MAX]

    def update(
        self,
        queried_s: float,
        answered_s: float,
        listed: set[str],
        seen: Mapping[str, SeenGroup],
        *,
        is_whole: bool,
    ) -> None:
        """Apply a poll.

        `listed` are the groups that the brokers listed as rebalancing. `seen` are those of the chosen groups
        (`choose`) that were still rebalancing when they were described. `is_whole` is True if the poll is
        complete, that is, if every broker has answered. `queried_s` is the time before the first request,
        `answered_s` the time after the last answer.
        """
        chosen = set(self.choose(listed))
        rebalancing = chosen & seen.keys()
        for group_id in sorted(rebalancing - self._without_begin):
            self._begin_or_continue_run(group_id, answered_s, seen[group_id])
        if is_whole:
            for group_id in self._open_runs.keys() - rebalancing:
                run = self._open_runs.pop(group_id)
                run.over_s = answered_s
                self._ended_runs[group_id] = run
            not_described = listed - chosen
            self._without_begin = frozenset((rebalancing | not_described) - self._open_runs.keys())
            self._complete_poll_s = queried_s
        self._drop_old(answered_s)

    def _begin_or_continue_run(self, group_id: str, at_s: float, seen: SeenGroup) -> None:
        """Extend the group's open run by this poll, or begin one if a complete poll came before."""
        run = self._open_runs.get(group_id)
        if run is not None:
            run.seen_s, run.seen = at_s, seen
        elif self._complete_poll_s is not None:
            self._open_runs[group_id] = _RebalanceRun(
                run_id=self._new_run_id(),
                not_yet_s=self._complete_poll_s,
                first_s=at_s,
                seen_s=at_s,
                seen=seen,
            )

    def _drop_old(self, now_s: float) -> None:
        """Drop the runs that ended more than _FORGET_S ago, and the end offsets that no run needs."""
        old = [
            group_id
            for group_id, run in self._ended_runs.items()
            if run.over_s is None or now_s - run.over_s > _FORGET_S
        ]
        for group_id in old:
            del self._ended_runs[group_id]
        needed = self.partitions()
        self._polled_ends = {n: polled for n, polled in self._polled_ends.items() if n in needed}

    def partitions(self) -> set[int]:
        """Return the partitions of `__consumer_offsets` whose end offsets are needed."""
        return {self._partition(group_id) for group_id in (*self._open_runs, *self._ended_runs)}

    def _partition(self, group_id: str) -> int:
        return kafka_partition(group_id, self._partitions)

    def update_ends(self, queried_s: float, ends: Mapping[int, int], read: Mapping[int, int]) -> None:
        """Apply the end offsets of partitions at `queried_s`, and the offsets up to which the query has read.
        Both are by partition.
        """
        for number, end in ends.items():
            ahead = self._polled_ends.setdefault(number, _PolledEnds()).ahead
            if len(ahead) < _ENDS_MAX:
                ahead.append(_PolledEnd(queried_s, end))
        for number, polled in self._polled_ends.items():
            read_offset = read.get(number, -1)
            while polled.ahead and polled.ahead[0].offset <= read_offset:
                polled.read_s = polled.ahead.pop(0).queried_s

    def records(self, now_s: float, seen_s: float) -> Iterator[tuple[bytes, SightingRecord]]:
        """Yield the key and the record of each group that the poll at `seen_s` showed rebalancing.

        Then yield the last record of each ended run whose end the query has reached in the group's partition.
        """
        for group_id, run in self._open_runs.items():
            if run.seen_s == seen_s:
                yield self._record(group_id, run, now_s, run.seen_s)
        for group_id, run in list(self._ended_runs.items()):
            assert run.over_s is not None
            read_s = self._read_s(group_id)
            if read_s is not None and read_s >= run.over_s:
                del self._ended_runs[group_id]
                yield self._record(group_id, run, now_s, run.over_s)

    def _read_s(self, group_id: str) -> float | None:
        """Return a time before which the query has read all of the group's records, or None if it has not
        reached a polled end offset yet.
        """
        polled = self._polled_ends.get(self._partition(group_id))
        return None if polled is None else polled.read_s

    def _record(
        self, group_id: str, run: _RebalanceRun, now_s: float, seen_s: float
    ) -> tuple[bytes, SightingRecord]:
        """Return the key and the value of a record about the run, whose times are ages at `now_s`."""
        read_s, members = self._read_s(group_id), run.seen.members
        is_over = run.over_s is not None
        has_too_many = members is not None and len(members) > MEMBERS_MAX
        return sighting_key(group_id, self._partition(group_id)), SightingRecord(
            run=run.run_id,
            state=run.seen.state,
            first_ago_ms=_ms(now_s - run.first_s),
            seen_ago_ms=_ms(now_s - seen_s),
            within_ms=_ms(run.first_s - run.not_yet_s),
            read_ago_ms=None if read_s is None else _ms(now_s - read_s),
            is_over=is_over,
            members=None if is_over or has_too_many else members,
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_REBALANCING_NAMES = [state.value for state in REBALANCING]
# Groups of one DescribeGroups request.
_DESCRIBED_AT_ONCE = 100
_BROKER_TIMEOUT_MS = 5_000
_DELIVERY_TIMEOUT_MS = 2_000
# The pause after a poll is at least this part of the time that the poll took.
_PAUSE_PART = 1.0

log = structlog.get_logger()


class RebalancePoller(FollowerThread):
    """A thread that polls the brokers every `interval_ms` until stopped, even while they are unreachable.

    `partitions` is the number of partitions of `__consumer_offsets`. Brokers older than Kafka 2.6 do not list
    groups by state. With such brokers the thread logs a warning once, and ends.
    """

    _retried_errors = Exception  # the observer works without sightings, too

    def __init__(self, client_config: ClientConfig, topic: str, *, partitions: int, interval_ms: int) -> None:
        super().__init__("rebalance-poller", "a poll for rebalancing groups")
        self._client_config = client_config
        self._topic = topic
        self._interval_s = interval_ms / 1000
        self._runs = RebalanceRuns(partitions)
        # By partition of `__consumer_offsets`: the offset up to which the query has read.
        self._read_offsets: Mapping[int, int] = {}
        self._has_warned_of_rights = False

    def set_read_offsets(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Set the offsets up to which the query has read, by topic and partition. Any thread may call it."""
        self._read_offsets = {number: offset for (topic, number), offset in ends.items() if topic == SOURCE}

    def _connect_and_follow(self) -> None:
        try:
            with ExitStack() as connections:
                admin = kafka_clients.admin(
                    self._client_config,
                    bootstrap_timeout_ms=_BROKER_TIMEOUT_MS,
                    request_timeout_ms=_BROKER_TIMEOUT_MS,
                )
                connections.callback(admin.close)
                producer = kafka_clients.best_effort_producer(
                    self._client_config, timeout_ms=_DELIVERY_TIMEOUT_MS, compression_type="gzip"
                )
                connections.callback(producer.close, timeout=_DELIVERY_TIMEOUT_MS / 1000)
                self._warn_of_rights(admin)
                self._poll(admin, producer)
        except (IncompatibleBrokerVersion, UnsupportedVersionError):
            self._stopped.set()
            log.warning(
                "the brokers do not list groups by state, as Kafka 2.6 and later do, so it stays unknown "
                "when a rebalance of a classic group began"
            )

    def _warn_of_rights(self, admin: KafkaAdminClient) -> None:
        """Warn once if the client may not DESCRIBE the cluster.

        Without that permission, brokers do not refuse ListGroups, but omit groups that the client may not
        DESCRIBE.
        """
        allowed = admin.describe_cluster().get("authorized_operations")
        if (
            allowed is None
            or self._has_warned_of_rights
            or "DESCRIBE" in {str(one).upper() for one in allowed}
        ):
            return
        self._has_warned_of_rights = True
        log.warning(
            "without the right to DESCRIBE the cluster, brokers list only groups that may be described, so "
            "it stays unknown when a rebalance of another classic group began"
        )

    def _poll(self, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        """Poll the brokers until stopped. Raises KafkaError."""
        while not self._stopped.is_set():
            began_s = time.monotonic()
            self._poll_once(admin, producer)
            self._worked()
            took_s = time.monotonic() - began_s
            self._stopped.wait(max(self._interval_s - took_s, _PAUSE_PART * took_s))

    def _poll_once(self, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        """Poll the brokers, write the sightings, and warn of a silent broker. Raises KafkaError."""
        queried_s = time.monotonic()
        states_by_broker, broker_error = self._list_groups(admin)
        listed = {group_id for states in states_by_broker.values() for group_id in states}
        chosen = set(self._runs.choose(listed))
        seen: dict[str, SeenGroup] = {}
        for broker, groups in states_by_broker.items():
            states = {group_id: state for group_id, state in groups.items() if group_id in chosen}
            seen |= self._describe_groups(admin, broker, states)
        answered_s = time.monotonic()
        self._runs.update(queried_s, answered_s, listed, seen, is_whole=broker_error is None)
        self._poll_ends(admin)
        sends = [
            producer.send(self._topic, encode(record), key)
            for key, record in self._runs.records(time.monotonic(), answered_s)
        ]
        for send in sends:
            send.get(timeout=_BROKER_TIMEOUT_MS / 1000)
        if broker_error is not None:
            self._warning.failed(broker_error)

    def _list_groups(self, admin: KafkaAdminClient) -> tuple[dict[int, dict[str, str]], KafkaError | None]:
        """Return the state of each rebalancing group by broker and group id, and the last error of a broker
        that did not answer, or None if all answered.
        """
        states_by_broker: dict[int, dict[str, str]] = {}
        broker_error: KafkaError | None = None
        brokers = admin.describe_cluster()["brokers"]
        # A fenced broker leads no partition, and so coordinates no group.
        for broker in [b["broker_id"] for b in brokers if not b.get("is_fenced")]:
            try:
                groups = admin.list_groups(broker_ids=[broker], states_filter=REBALANCING)
            except (IncompatibleBrokerVersion, UnsupportedVersionError):
                raise
            except KafkaError as error:
                broker_error = error
                continue
            states_by_broker[broker] = {g["group_id"]: g["group_state"] for g in groups}
        return states_by_broker, broker_error

    def _describe_groups(
        self, admin: KafkaAdminClient, broker: int, states: Mapping[str, str]
    ) -> dict[str, SeenGroup]:
        """Describe the groups of `states`, which are states by group id, and return those that are still
        rebalancing. A group that cannot be described counts as rebalancing.
        """
        seen: dict[str, SeenGroup] = {}
        listed = list(states)
        for first in range(0, len(listed), _DESCRIBED_AT_ONCE):
            group_ids = listed[first : first + _DESCRIBED_AT_ONCE]
            described: dict[str, Any] = admin.describe_groups(group_ids, group_coordinator_id=broker)
            for group_id in group_ids:
                group = described.get(group_id)
                if group is None or group["error"] is not None:
                    # The group keeps the state in which it was listed.
                    seen[group_id] = SeenGroup(states[group_id], None)
                elif group["group_state"] in _REBALANCING_NAMES:
                    seen[group_id] = SeenGroup(group["group_state"], tuple(map(_member, group["members"])))
        return seen

    def _poll_ends(self, admin: KafkaAdminClient) -> None:
        """Query the end offsets of the partitions that have runs."""
        partitions = self._runs.partitions()
        if not partitions:
            return
        queried_s = time.monotonic()
        wanted = {TopicPartition(SOURCE, number): OffsetSpec.LATEST for number in partitions}
        results = admin.list_partition_offsets(wanted)
        ends = {partition.partition: result.offset for partition, result in results.items()}
        self._runs.update_ends(queried_s, ends, self._read_offsets)


def _member(member: Mapping[str, Any]) -> SeenMember:
    return SeenMember(
        member_id=member["member_id"],
        group_instance_id=member.get("group_instance_id"),
        client_id=member["client_id"],
        client_host=member["client_host"],
    )
