"""A poller of the brokers for rebalancing classic groups, which it writes to the sightings topic.

A rebalance of a classic group appears in `__consumer_offsets` only when it is over. ListGroups by state and
DescribeGroups show it while it is running. The query reads these sightings as a second log, so its output
depends on records alone.
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
from kafka_why.lifetimes import BackgroundThread, OutageWarning
from kafka_why.observed.consumer_offsets.schemas import partition_of_offsets
from streaming.observing.operator import SOURCE

# Rebalancing groups found by polls, as records of the sightings topic. No IO.
#
# Times are seconds of a monotonic clock.


GROUPS_MAX = 2_000
"""The maximum number of groups followed at a time."""
# The maximum number of ends kept for a partition. The oldest ones suffice, because the query reaches them
# first.
_ENDS_MAX = 64
# A finished rebalance is forgotten after this time, even if the query has not read up to its end.
_FORGET_S = 600.0


class SeenGroup(NamedTuple):
    """A rebalancing group: its state, and its members if it was described and has not too many."""

    state: str
    members: tuple[SeenMember, ...] | None


class _RebalanceRun(Struct):
    """A rebalance of a group.

    Each poll from `first_s` to `seen_s` showed it, but not the poll of `before_s`. `over_s` is the time of
    the first poll after its end, or None while it is in progress.
    """

    name: str
    first_s: float
    before_s: float
    seen_s: float
    seen: SeenGroup
    over_s: float | None = None


class _Ends(Struct):
    """The polled ends of a partition of `__consumer_offsets`."""

    # Ends that the query has not reached yet: (time of the poll, offset).
    waiting: list[tuple[float, int]] = field(default_factory=list)
    read_s: float | None = None  # the time of the poll of the last end that the query has reached


class RebalanceRuns:
    """The rebalances in progress, followed over complete polls of all brokers. `partitions` is the number of
    partitions of the source.
    """

    def __init__(self, partitions: int, new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._partitions = partitions
        self._new_name = new_name
        self._runs: dict[str, _RebalanceRun] = {}
        self._over: dict[str, _RebalanceRun] = {}
        # Groups whose rebalance began before they were followed, at an unknown time.
        self._unbounded: frozenset[str] = frozenset()
        self._before_s: float | None = None
        self._ends: dict[int, _Ends] = {}

    def choose(self, listed: set[str]) -> list[str]:
        """Return the listed groups to follow. Groups that are already followed come first."""
        return sorted(listed, key=lambda group_id: (group_id not in self._runs, group_id))[:GROUPS_MAX]

    def update(
        self,
        queried_s: float,
        answered_s: float,
        listed: set[str],
        seen: Mapping[str, SeenGroup],
        *,
        is_whole: bool,
    ) -> None:
        """Apply a poll: the groups `listed` as rebalancing, and the states `seen` of those that `choose`
        returns.

        `is_whole` is True if every broker has answered. `queried_s` is the time before the first request,
        `answered_s` the time after the last answer.
        """
        chosen = set(self.choose(listed))
        for group_id in sorted(seen.keys() & chosen - self._unbounded):
            self._see(group_id, answered_s, seen[group_id])
        if is_whole:
            gone = self._runs.keys() - {g for g in chosen if g in seen}
            for group_id in gone:
                run = self._runs.pop(group_id)
                run.over_s = answered_s
                self._over[group_id] = run
            rebalancing = listed - (chosen - seen.keys())
            self._unbounded = frozenset(rebalancing - self._runs.keys())
            self._before_s = queried_s
        self._forget(answered_s)

    def _see(self, group_id: str, at_s: float, seen: SeenGroup) -> None:
        run = self._runs.get(group_id)
        if run is not None:
            run.seen_s, run.seen = at_s, seen
        elif self._before_s is not None:
            self._runs[group_id] = _RebalanceRun(self._new_name(), at_s, self._before_s, at_s, seen)

    def _forget(self, now_s: float) -> None:
        late = [g for g, run in self._over.items() if run.over_s is None or now_s - run.over_s > _FORGET_S]
        for group_id in late:
            del self._over[group_id]
        needed = self.partitions()
        self._ends = {number: ends for number, ends in self._ends.items() if number in needed}

    def partitions(self) -> set[int]:
        """Return the partitions of `__consumer_offsets` whose ends are needed."""
        return {self._partition(group_id) for group_id in (*self._runs, *self._over)}

    def _partition(self, group_id: str) -> int:
        return partition_of_offsets(group_id, self._partitions)

    def update_ends(self, queried_s: float, ends: Mapping[int, int], read: Mapping[int, int]) -> None:
        """Apply the ends that partitions had at `queried_s`, and the offsets that the query has read to."""
        for number, end in ends.items():
            of_partition = self._ends.setdefault(number, _Ends())
            if len(of_partition.waiting) < _ENDS_MAX:
                of_partition.waiting.append((queried_s, end))
        for number, of_partition in self._ends.items():
            so_far = read.get(number, -1)
            while of_partition.waiting and of_partition.waiting[0][1] <= so_far:
                of_partition.read_s = of_partition.waiting.pop(0)[0]

    def records(self, now_s: float, seen_s: float) -> Iterator[tuple[bytes, SightingRecord]]:
        """Yield the key and the record of each group that was seen rebalancing at `seen_s`.

        A group whose rebalance is over follows once the query has read up to the end of that rebalance.
        """
        for group_id, run in self._runs.items():
            if run.seen_s == seen_s:
                yield self._record(group_id, run, now_s, run.seen_s)
        for group_id, run in list(self._over.items()):
            assert run.over_s is not None
            read_s = self._read_s(group_id)
            if read_s is not None and read_s >= run.over_s:
                del self._over[group_id]
                yield self._record(group_id, run, now_s, run.over_s)

    def _read_s(self, group_id: str) -> float | None:
        ends = self._ends.get(self._partition(group_id))
        return None if ends is None else ends.read_s

    def _record(
        self, group_id: str, run: _RebalanceRun, now_s: float, seen_s: float
    ) -> tuple[bytes, SightingRecord]:
        read_s, members = self._read_s(group_id), run.seen.members
        is_over = run.over_s is not None
        return sighting_key(group_id, self._partition(group_id)), SightingRecord(
            run=run.name,
            state=run.seen.state,
            first_ago_ms=_ms(now_s - run.first_s),
            seen_ago_ms=_ms(now_s - seen_s),
            within_ms=_ms(run.first_s - run.before_s),
            read_ago_ms=None if read_s is None else _ms(now_s - read_s),
            is_over=is_over,
            members=None if is_over or members is None or len(members) > MEMBERS_MAX else members,
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_NAMES = [state.value for state in REBALANCING]
# Groups of one DescribeGroups request.
_DESCRIBED_AT_ONCE = 100
_BROKER_TIMEOUT_MS = 5_000
_DELIVERY_TIMEOUT_MS = 2_000
_RETRY_S = 1.0
# The pause after a poll is at least this part of the time that the poll took.
_PAUSE_PART = 1.0

log = structlog.get_logger()


class RebalancePoller(BackgroundThread):
    """A thread that polls the brokers every `interval_ms` until stopped, even while they are unreachable.

    `partitions` is the number of partitions of `__consumer_offsets`. Brokers older than Kafka 2.6 do not list
    groups by state. With such brokers the thread logs a warning once, and ends.
    """

    def __init__(self, client_config: ClientConfig, topic: str, *, partitions: int, interval_ms: int) -> None:
        super().__init__("rebalance-poller")
        self._client_config = client_config
        self._topic = topic
        self._interval_s = interval_ms / 1000
        self._runs = RebalanceRuns(partitions)
        self._read: Mapping[int, int] = {}
        self._outage = OutageWarning("a poll for rebalancing groups")
        self._has_warned = False

    def read_to(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Set how far the query has read, by topic and partition. Any thread may call it."""
        self._read = {number: offset for (topic, number), offset in ends.items() if topic == SOURCE}

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with ExitStack() as connections:
                    admin = kafka_clients.admin(
                        self._client_config,
                        bootstrap_timeout_ms=_BROKER_TIMEOUT_MS,
                        request_timeout_ms=_BROKER_TIMEOUT_MS,
                    )
                    connections.callback(admin.close)
                    producer = kafka_clients.sightings_producer(
                        self._client_config, timeout_ms=_DELIVERY_TIMEOUT_MS
                    )
                    connections.callback(producer.close, timeout=_DELIVERY_TIMEOUT_MS / 1000)
                    self._warn_of_rights(admin)
                    self._poll(admin, producer)
            except (IncompatibleBrokerVersion, UnsupportedVersionError):
                log.warning(
                    "the brokers do not list groups by state, as Kafka 2.6 and later do: when a rebalance of "
                    "a classic group began stays unknown"
                )
                return
            except Exception as error:  # noqa: BLE001 - the observer works without sightings, too
                self._outage.failed(error)
                self._stopped.wait(_RETRY_S)

    def _warn_of_rights(self, admin: KafkaAdminClient) -> None:
        """Warn once if the client may not DESCRIBE the cluster.

        Without that permission, brokers do not refuse ListGroups, but omit groups that the client may not
        DESCRIBE.
        """
        allowed = admin.describe_cluster().get("authorized_operations")
        if allowed is None or self._has_warned or "DESCRIBE" in {str(one).upper() for one in allowed}:
            return
        self._has_warned = True
        log.warning(
            "without the right to DESCRIBE the cluster, brokers list only groups that may be described: when "
            "a rebalance of another classic group began stays unknown"
        )

    def _poll(self, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        """Poll the brokers until stopped. Raises KafkaError."""
        while not self._stopped.is_set():
            began_s = time.monotonic()
            self._poll_once(admin, producer)
            self._outage.worked()
            took_s = time.monotonic() - began_s
            self._stopped.wait(max(self._interval_s - took_s, _PAUSE_PART * took_s))

    def _poll_once(self, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        queried_s = time.monotonic()
        by_broker, failed = self._list_groups(admin)
        listed = {group_id for groups in by_broker.values() for group_id in groups}
        chosen = set(self._runs.choose(listed))
        seen: dict[str, SeenGroup] = {}
        for broker, groups in by_broker.items():
            seen |= self._describe_groups(admin, broker, {g: s for g, s in groups.items() if g in chosen})
        answered_s = time.monotonic()
        self._runs.update(queried_s, answered_s, listed, seen, is_whole=failed is None)
        self._find_ends(admin)
        sent = [
            producer.send(self._topic, encode(record), key)
            for key, record in self._runs.records(time.monotonic(), answered_s)
        ]
        for written in sent:
            written.get(timeout=_BROKER_TIMEOUT_MS / 1000)
        if failed is not None:
            self._outage.failed(failed)

    def _list_groups(self, admin: KafkaAdminClient) -> tuple[dict[int, dict[str, str]], KafkaError | None]:
        """Return the state of each rebalancing group by broker, and the error of a broker that did not
        answer, or None.
        """
        found: dict[int, dict[str, str]] = {}
        failed: KafkaError | None = None
        brokers = admin.describe_cluster()["brokers"]
        # A fenced broker leads no partition, and so coordinates no group.
        for broker in [b["broker_id"] for b in brokers if not b.get("is_fenced")]:
            try:
                groups = admin.list_groups(broker_ids=[broker], states_filter=REBALANCING)
            except (IncompatibleBrokerVersion, UnsupportedVersionError):
                raise
            except KafkaError as error:
                failed = error
                continue
            found[broker] = {g["group_id"]: g["group_state"] for g in groups}
        return found, failed

    def _describe_groups(
        self, admin: KafkaAdminClient, broker: int, states: Mapping[str, str]
    ) -> dict[str, SeenGroup]:
        """Describe the groups in `states`, and return those that are still rebalancing."""
        found: dict[str, SeenGroup] = {}
        listed = list(states)
        for first in range(0, len(listed), _DESCRIBED_AT_ONCE):
            group_ids = listed[first : first + _DESCRIBED_AT_ONCE]
            described: dict[str, Any] = admin.describe_groups(group_ids, group_coordinator_id=broker)
            for group_id in group_ids:
                group = described.get(group_id)
                if group is None or group["error"] is not None:
                    # The group keeps the state in which it was listed.
                    found[group_id] = SeenGroup(states[group_id], None)
                elif group["group_state"] in _NAMES:
                    found[group_id] = SeenGroup(group["group_state"], tuple(map(_member, group["members"])))
        return found

    def _find_ends(self, admin: KafkaAdminClient) -> None:
        partitions = self._runs.partitions()
        if not partitions:
            return
        queried_s = time.monotonic()
        wanted = {TopicPartition(SOURCE, number): OffsetSpec.LATEST for number in partitions}
        found = admin.list_partition_offsets(wanted)
        ends = {partition.partition: at.offset for partition, at in found.items()}
        self._runs.update_ends(queried_s, ends, self._read)


def _member(member: Mapping[str, Any]) -> SeenMember:
    return SeenMember(
        member_id=member["member_id"],
        group_instance_id=member.get("group_instance_id"),
        client_id=member["client_id"],
        client_host=member["client_host"],
    )
