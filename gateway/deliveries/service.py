"""All share groups whose records pass this gateway, and the writer of their counts."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, islice
from typing import Any
from uuid import UUID, uuid4

import structlog
from kafka.protocol.api_key import ApiKey

from gateway.deliveries.group import DEFAULT_LIMIT, CapacityCounter, DeliveryCounts
from gateway.deliveries.member import DeliveryTotals, MemberDeliveries, SharedState
from gateway.metrics.numbers import Numbers, Values
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.telemetry import Counted, GroupDeliveries, Suspect
from kafka_why.numbers import is_whole_number

GROUPS_MAX = 1_000
"""The maximum number of groups that are counted."""
ID_MAX_CHARS = 1_024
"""Groups with longer ids are not counted, to limit the size of a record."""
RECORD_ROWS, RECORD_SUSPECTS = 300, 100
"""The maximum numbers of rows and suspects in one record. A record with all of them has about 150 KiB."""
LIMIT_AGE_MAX_MS = 300_000
"""After this time a group's `share.delivery.count.limit` is queried again."""
_LIMITS_AT_ONCE = 100
# Bounds for all groups together, which take about 60 MiB of memory.
_ROWS_MAX = _SUSPECTS_MAX = 30_000
_HELD_MAX, _EXPIRED_MAX = 100_000, 20_000


class Deliveries:
    """The deliveries to members of share groups, and their acknowledgements. `clock_ms` is monotonic."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.totals = DeliveryTotals()
        self.gateway_id = uuid4().hex
        self._clock_ms = clock_ms
        self._shared = SharedState(
            self.totals, CapacityCounter(_HELD_MAX), CapacityCounter(_EXPIRED_MAX), clock_ms
        )
        self._row_capacity = CapacityCounter(_ROWS_MAX)
        self._suspect_capacity = CapacityCounter(_SUSPECTS_MAX)
        self._groups: dict[str, DeliveryCounts] = {}
        self._members: dict[MemberDeliveries, None] = {}
        self.has_new_group = asyncio.Event()
        """Set when the limit of a new group has to be queried."""

    @property
    def sessions(self) -> int:
        """The number of connections of members of share groups."""
        return len(self._members)

    def open(self, group_id: str, member_id: str) -> MemberDeliveries:
        """Return a new member for a connection on which a member sends its first request."""
        member = MemberDeliveries(member_id, partial(self._join, group_id), self._shared)
        self._members[member] = None
        return member

    def close(self, member: MemberDeliveries) -> None:
        """Remove a member whose connection has ended."""
        if member in self._members:
            del self._members[member]
            member.end()
            if member.joined is not None:
                member.joined.sessions -= 1

    def expire(self) -> None:
        """Count the locks that have ended."""
        for member in self._members:
            member.expire()

    def due_for_limit(self) -> list[DeliveryCounts]:
        """Return the groups with members whose `share.delivery.count.limit` is to be queried now, and record
        the time of the query.
        """
        now_ms = self._clock_ms()
        stale = (
            group
            for group in self._groups.values()
            if group.sessions and now_ms - group.limit_queried_ms > LIMIT_AGE_MAX_MS
        )
        due = list(islice(stale, _LIMITS_AT_ONCE))
        for group in due:
            group.limit_queried_ms = now_ms
        return due

    def take_records(self) -> Iterator[tuple[GroupDeliveries, list[bytes]]]:
        """Remove the counts of each group, and yield them as a record and a list of topic ids.

        The record has no names of topics yet. The caller looks them up by the list, which has the topic id of
        each of the record's rows, then of each of its suspects (records that may be poison).
        """
        now_ms = self._clock_ms()
        for group in self._groups.values():
            taken, suspects = group.take(now_ms), group.suspects.take_changed(RECORD_SUSPECTS)
            if taken is None and not suspects:
                continue
            rows = [] if taken is None else list(taken.rows(RECORD_ROWS))
            record = GroupDeliveries(
                version=RECORD_VERSION,
                group_id=group.group_id,
                gateway_id=self.gateway_id,
                took_ms=0 if taken is None else taken.took_ms,
                delivery_limit=group.limit,
                is_limit_known=group.is_limit_known,
                lock_ms=group.lock_ms,
                sessions=group.sessions,
                rows=[row for _, row in rows],
                others=None if taken is None else taken.others,
                suspects=[suspect for _, suspect in suspects],
            )
            yield record, [topic_id for topic_id, _ in rows] + [topic_id for (topic_id, *_), _ in suspects]

    def _join(self, group_id: str) -> DeliveryCounts | None:
        """Return the group for a member that joins it, or None if there is no capacity for another group."""
        group = self._groups.get(group_id)
        if group is None:
            if len(group_id) > ID_MAX_CHARS or not self._make_capacity():
                return None
            self._groups[group_id] = group = DeliveryCounts(
                group_id, self._row_capacity, self._suspect_capacity, self._clock_ms()
            )
            self.has_new_group.set()
        group.sessions += 1
        return group

    def _make_capacity(self) -> bool:
        """Return True if there is capacity for another group.

        If necessary, remove the oldest group without members.
        """
        if len(self._groups) < GROUPS_MAX:
            return True
        idle = next((group for group in self._groups.values() if not group.sessions), None)
        if idle is not None:
            idle.clear()
            del self._groups[idle.group_id]
        return idle is not None


# Counters of share groups' records. Groups and members are not labels, because clients choose them.


_ACK_TYPES = {"Accept": "accepted", "Release": "released", "Reject": "rejected", "Renew": "renewed"}
"""The labels of Kafka's RecordAcknowledgementsPerSec (kafka.server:type=ShareGroupMetrics), and our counts.
"""
_COUNTERS = {
    "share_records_delivered": "delivered",
    "share_records_redelivered": "redelivered",
    "share_records_at_delivery_limit": "last",
    "share_records_expired": "expired",
    "share_records_released_by_end": "ended",
    "share_records_not_followed": "unfollowed",
    "share_acknowledgements_late": "late",
}


def delivery_numbers(deliveries: Deliveries | None) -> Numbers:
    """Return the metrics, counted since the start, or none if deliveries are not counted."""
    if deliveries is None:
        return {}
    totals = deliveries.totals
    counted = totals.counted
    acknowledged: Values = {(label,): [float(getattr(counted, name))] for label, name in _ACK_TYPES.items()}
    return {
        "share_record_acknowledgements": acknowledged,
        **{metric: {(): [float(getattr(counted, name))]} for metric, name in _COUNTERS.items()},
        "share_acknowledgements_refused": {(): [float(totals.refused)]},
        "share_records_suspected": {(): [float(totals.suspected)]},
        "share_sessions": {(): [float(deliveries.sessions)]},
    }


# The writer of the counts of share groups to the telemetry topic. It also queries the groups' delivery
# limits.


INTERVAL_S = 60.0
_QUERY_INTERVAL_S = 5.0
"""The interval of checks for limits to query. A new group's limit is queried at once."""
_PAUSE_S = 0.1
"""The minimum pause between two queries."""
_DESCRIBE_VERSION = 4
_GROUP = 32  # ConfigResource.Type.GROUP
_LIMIT = "share.delivery.count.limit"

log = structlog.get_logger()


WriteDeliveries = Callable[[GroupDeliveries, int], None]
"""Writes the record with this number. The record may be lost."""


class DeliveryReports:
    """The writer of delivery records: one for each group and minute with deliveries."""

    def __init__(self, deliveries: Deliveries, cluster: Cluster, write: WriteDeliveries) -> None:
        self._deliveries = deliveries
        self._cluster = cluster
        self._write = write
        self._record_numbers = count()

    async def follow(self) -> None:
        """Write the counts periodically, until cancelled."""
        loop = asyncio.get_running_loop()
        write_at_s = loop.time() + INTERVAL_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_QUERY_INTERVAL_S):
                    await self._deliveries.has_new_group.wait()
            self._deliveries.has_new_group.clear()
            await asyncio.sleep(_PAUSE_S)
            self._deliveries.expire()
            await self.query_limits()
            if loop.time() >= write_at_s:
                write_at_s = loop.time() + INTERVAL_S
                await self.write()

    async def write(self) -> None:
        """Write the counts since the last call. A topic whose name is unknown is written with its id."""
        self._deliveries.expire()
        for record, topic_ids in self._deliveries.take_records():
            names = await self._names(topic_ids)
            entries: list[Counted | Suspect] = [*record.rows, *record.suspects]
            for entry, topic_id in zip(entries, topic_ids, strict=True):
                entry.topic = names.get(topic_id) or str(UUID(bytes=topic_id))
            self._write(record, next(self._record_numbers))

    async def query_limits(self) -> None:
        """Query delivery limits that are unknown or old. A group has Kafka's default if the gateway's
        principal lacks DESCRIBE_CONFIGS on it.
        """
        groups = self._deliveries.due_for_limit()
        if not groups:
            return
        resources = [
            {"resource_type": _GROUP, "resource_name": group.group_id, "configuration_keys": [_LIMIT]}
            for group in groups
        ]
        request = {"resources": resources, "include_synonyms": False, "include_documentation": False}
        try:
            answer = await self._cluster.ask(ApiKey.DescribeConfigs, _DESCRIBE_VERSION, request)
        except UpstreamLost as error:
            log.warning("the limits of deliveries of share groups are not known", error=str(error))
            return
        _set_limits(groups, answer.results)

    async def _names(self, topic_ids: Sequence[bytes]) -> dict[bytes, str]:
        """Return the names of the topics that exist, by id. It is empty if no broker answers."""
        uuids = {topic_id: UUID(bytes=topic_id) for topic_id in topic_ids}
        try:
            topics = await self._cluster.topics_by_id(uuids.values())
        except UpstreamLost:
            return {}
        return {topic_id: topics[uuid].name for topic_id, uuid in uuids.items() if uuid in topics}


def _set_limits(groups: Sequence[DeliveryCounts], results: Sequence[Any]) -> None:
    """Set the groups' delivery limits from the results of a DescribeConfigs."""
    values: dict[str, str | None] = {
        result.resource_name: config.value
        for result in results
        if not result.error_code
        for config in result.configs
        if config.name == _LIMIT
    }
    for group in groups:
        value = values.get(group.group_id) or ""
        group.is_limit_known = is_whole_number(value)
        group.limit = int(value) if group.is_limit_known else DEFAULT_LIMIT
        if group.is_limit_known:
            group.suspects.set_limit(group.limit)
