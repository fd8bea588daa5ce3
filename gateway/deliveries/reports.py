"""The writer of the counts of share groups to the telemetry topic. It also queries the groups' delivery
limits.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Protocol
from uuid import UUID

import structlog
from kafka.protocol.api_key import ApiKey

from gateway.deliveries.group import DEFAULT_LIMIT, DeliveryCounts
from gateway.deliveries.service import Deliveries
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from kafka_why.contract.telemetry import Counted, GroupDeliveries, Suspect
from kafka_why.numbers import is_whole_number

INTERVAL_S = 60.0
_QUERY_INTERVAL_S = 5.0
"""The interval of checks for limits to query. A new group's limit is queried at once."""
_PAUSE_S = 0.1
"""The minimum pause between two queries."""
_DESCRIBE_VERSION = 4
_GROUP = 32  # ConfigResource.Type.GROUP
_LIMIT = "share.delivery.count.limit"

log = structlog.get_logger()


class DeliveryEvidence(Protocol):
    """The receiver of the records."""

    def write_deliveries(self, record: GroupDeliveries, number: int) -> None:
        """Write a gateway's `number`th record, which may be lost."""


class DeliveryReports:
    """The writer of a record for each group and minute with any deliveries."""

    def __init__(self, deliveries: Deliveries, cluster: Cluster, evidence: DeliveryEvidence) -> None:
        self._deliveries = deliveries
        self._cluster = cluster
        self._evidence = evidence
        self._numbers = count()
        self._has_group = asyncio.Event()
        deliveries.on_group = self._has_group.set

    async def follow(self) -> None:
        """Write the counts periodically, until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + INTERVAL_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_QUERY_INTERVAL_S):
                    await self._has_group.wait()
            self._has_group.clear()
            await asyncio.sleep(_PAUSE_S)
            self._deliveries.expire()
            await self.query_limits()
            if loop.time() >= due_s:
                due_s = loop.time() + INTERVAL_S
                await self.write()

    async def write(self) -> None:
        """Write the counts since the last call. A topic without a known name is written with its id."""
        self._deliveries.expire()
        for record, topic_ids in self._deliveries.taken():
            names = await self._names(topic_ids)
            named: list[Counted | Suspect] = [*record.rows, *record.suspects]
            for one, topic_id in zip(named, topic_ids, strict=True):
                one.topic = names.get(topic_id) or str(UUID(bytes=topic_id))
            self._evidence.write_deliveries(record, next(self._numbers))

    async def query_limits(self) -> None:
        """Query delivery limits that are unknown or old. Groups without DESCRIBE_CONFIGS for the gateway's
        principal have Kafka's default.
        """
        groups = self._deliveries.without_limit()
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
        ids = {topic_id: UUID(bytes=topic_id) for topic_id in topic_ids}
        try:
            found = await self._cluster.topics_by_id(ids.values())
        except UpstreamLost:
            return {}
        return {raw: found[topic_id].name for raw, topic_id in ids.items() if topic_id in found}


def _set_limits(groups: Sequence[DeliveryCounts], results: Sequence[Any]) -> None:
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
