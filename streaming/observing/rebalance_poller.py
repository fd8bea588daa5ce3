"""Asks the brokers which classic groups are rebalancing, and writes what it sees to the sightings topic.

`__consumer_offsets` has a rebalance of a classic group when it is over. ListGroups by state and
DescribeGroups show it while it lasts. The query reads the sightings beside the log, so its outcome follows
from records alone.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import structlog
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import GroupState, OffsetSpec
from kafka.errors import IncompatibleBrokerVersion, KafkaError, UnsupportedVersionError

from kafka_why.background_thread import BackgroundThread
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.outage_warning import OutageWarning
from kafka_why.contract.sightings import SeenMember, encode_sighting
from streaming.observing.operator import SOURCE
from streaming.observing.rebalance_runs import RebalanceRuns, Seen

REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_NAMES = [state.value for state in REBALANCING]
# Groups of one DescribeGroups request.
_DESCRIBED_AT_ONCE = 100
_BROKER_TIMEOUT_MS = 5_000
_DELIVERY_TIMEOUT_MS = 2_000
_RETRY_S = 1.0
# A look that takes long is followed by a pause of at least so long a part of it.
_PAUSE_PART = 1.0

log = structlog.get_logger()


class RebalancePoller(BackgroundThread):
    """Looks at the brokers every `interval_ms` until stopped, and goes on when they are not there.

    `partitions` is the number of partitions of `__consumer_offsets`. Brokers older than Kafka 2.6 do not list
    groups by state. It then says so once, and ends.
    """

    def __init__(self, client_config: ClientConfig, topic: str, *, partitions: int, interval_ms: int) -> None:
        super().__init__("rebalance-poller")
        self._client_config = client_config
        self._topic = topic
        self._interval_s = interval_ms / 1000
        self._runs = RebalanceRuns(partitions)
        self._read: Mapping[int, int] = {}
        self._outage = OutageWarning("a look at rebalancing groups")
        self._has_warned = False

    def read_to(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Learn how far the query has read, by topic and partition. May be called in any thread."""
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
        """Brokers do not refuse ListGroups. They leave groups out that the client may not DESCRIBE."""
        allowed = admin.describe_cluster().get("authorized_operations")
        if allowed is None or self._has_warned or "DESCRIBE" in {str(one).upper() for one in allowed}:
            return
        self._has_warned = True
        log.warning(
            "without the right to DESCRIBE the cluster, brokers list only groups that may be described: when "
            "a rebalance of another classic group began stays unknown"
        )

    def _poll(self, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        """Look until stopped. Raises KafkaError."""
        while not self._stopped.is_set():
            began_s = time.monotonic()
            self._look(admin, producer)
            self._outage.worked()
            took_s = time.monotonic() - began_s
            self._stopped.wait(max(self._interval_s - took_s, _PAUSE_PART * took_s))

    def _look(self, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        asked_s = time.monotonic()
        by_broker, failed = self._listed(admin)
        listed = {group_id for groups in by_broker.values() for group_id in groups}
        chosen = set(self._runs.choose(listed))
        seen: dict[str, Seen] = {}
        for broker, groups in by_broker.items():
            seen |= self._described(admin, broker, {g: s for g, s in groups.items() if g in chosen})
        answered_s = time.monotonic()
        self._runs.look(asked_s, answered_s, listed, seen, is_whole=failed is None)
        self._find_ends(admin)
        sent = [
            producer.send(self._topic, encode_sighting(record), key)
            for key, record in self._runs.records(time.monotonic(), answered_s)
        ]
        for written in sent:
            written.get(timeout=_BROKER_TIMEOUT_MS / 1000)
        if failed is not None:
            self._outage.failed(failed)

    def _listed(self, admin: KafkaAdminClient) -> tuple[dict[int, dict[str, str]], KafkaError | None]:
        """Return the state of each rebalancing group by broker, and the error of one that did not answer."""
        found: dict[int, dict[str, str]] = {}
        failed: KafkaError | None = None
        brokers = admin.describe_cluster()["brokers"]
        # One that is fenced leads no partition, and so coordinates no group.
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

    def _described(self, admin: KafkaAdminClient, broker: int, states: Mapping[str, str]) -> dict[str, Seen]:
        """Return those of these groups that are still rebalancing. One that the broker does not describe has
        the state in which it was listed.
        """
        found: dict[str, Seen] = {}
        asked = list(states)
        for first in range(0, len(asked), _DESCRIBED_AT_ONCE):
            group_ids = asked[first : first + _DESCRIBED_AT_ONCE]
            described: dict[str, Any] = admin.describe_groups(group_ids, group_coordinator_id=broker)
            for group_id in group_ids:
                group = described.get(group_id)
                if group is None or group["error"] is not None:
                    found[group_id] = Seen(states[group_id], None)
                elif group["group_state"] in _NAMES:
                    found[group_id] = Seen(group["group_state"], tuple(map(_member, group["members"])))
        return found

    def _find_ends(self, admin: KafkaAdminClient) -> None:
        partitions = self._runs.partitions()
        if not partitions:
            return
        asked_s = time.monotonic()
        wanted = {TopicPartition(SOURCE, number): OffsetSpec.LATEST for number in partitions}
        found = admin.list_partition_offsets(wanted)
        ends = {partition.partition: at.offset for partition, at in found.items()}
        self._runs.ended(asked_s, ends, self._read)


def _member(member: Mapping[str, Any]) -> SeenMember:
    return SeenMember(
        member_id=member["member_id"],
        group_instance_id=member.get("group_instance_id"),
        client_id=member["client_id"],
        client_host=member["client_host"],
    )
