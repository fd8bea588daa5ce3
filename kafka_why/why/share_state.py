"""Finds a share group's unfinished requests to the share coordinator, partitions that no member has, and
settings that differ between the brokers and the group's coordinator (row SP27).

The coordinator reads three settings of the group, which the brokers store, too. A change through the gateway
reaches both. The settings differ after a change that was sent to a broker directly, or if a gateway ended in
the middle of a change.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import SHARE, EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot, NamedPartitions, ShareSnapshot
from kafka_why.contract.messages import SettingValue, name_of
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition, by_topic
from kafka_why.grouping import grouped
from kafka_why.why.model import SharePartitionStates, ShareStateRequest
from kafka_why.why.moves import Partitions
from kafka_why.why.reconciling import flat, partition_count
from kafka_why.wording import Lines, count, duration_text, listing, partitions_text

# Rows of docs/rules.md: after these errors the coordinator retries.
_RETRY_RULES = ("SI10", "SI11")
# Rows of docs/rules.md: after these errors of an administrator's request the partition stays as it was.
_CANCEL_RULES = ("SO12",)


def open_requests(share: ShareSnapshot) -> list[ShareStateRequest]:
    """Return the group's unfinished requests: for each open task, one for each last error of its partitions.

    A task is what the cluster's share coordinator has to do for the group: initialize or delete states.
    """
    requests = []
    for task in share.tasks or ():
        partitions_by_error: dict[int, NamedPartitions] = {}
        for topic in task.topics:
            numbers = partitions_by_error.setdefault(topic.error_code, {}).setdefault(topic.topic_name, [])
            numbers += topic.partitions
        requests += [
            ShareStateRequest(
                task=task.task,
                is_deletion=task.kind == "delete",
                since_ms=task.asked_at_ms,
                partitions=partitions,
                error_code=code or None,
                is_open=True,
            )
            for code, partitions in partitions_by_error.items()
        ]
    return requests


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the share coordinator about a partition."""

    task: str | None
    is_deletion: bool
    since_ms: int
    error_code: int | None = None
    is_open: bool = True  # False after an end with `error_code`; the next heartbeat then starts a new request


def share_partitions_after(entries: Sequence[HistoryEntry]) -> SharePartitionStates | None:
    """Return the states of a share group's partitions after these entries (at least one).

    Return None if the group is then of another type, or was deleted.
    """
    if entries[-1].group_type != SHARE or entries[-1].type is EntryType.GROUP_DELETED:
        return None
    tracker = _ShareStateTracker()
    for event in entries:
        if event.group_type == SHARE:
            tracker.apply(event)
    return tracker.states()


class _ShareStateTracker:
    """A share group's unfinished requests, its initialized partitions, and the members' partitions."""

    def __init__(self) -> None:
        self._requests: dict[TopicPartition, _Request] = {}  # unfinished, also those that ended with an error
        self._initialized: set[TopicPartition] = set()
        self._assigned: dict[MemberId, Partitions] = {}

    def apply(self, event: HistoryEntry) -> None:
        """Apply the next entry of the group's history."""
        partitions, task = flat(event.partitions), None if event.observed else event.cause
        match event.type:
            case EntryType.SHARE_PARTITIONS_INITIALIZING:
                request = _Request(task, is_deletion=False, since_ms=event.at_ms)
                self._requests.update(dict.fromkeys(partitions, request))
            case EntryType.SHARE_PARTITIONS_DELETING:
                self._remove(event, partitions)
                request = _Request(task, is_deletion=True, since_ms=event.at_ms)
                self._requests.update(dict.fromkeys(partitions, request))
            case EntryType.SHARE_PARTITIONS_INITIALIZED:
                self._remove(event, partitions)
                self._initialized |= partitions
            case EntryType.SHARE_PARTITIONS_NOT_INITIALIZED | EntryType.SHARE_PARTITIONS_NOT_DELETED:
                self._fail(event, partitions)
            case EntryType.SHARE_PARTITIONS_REMOVED:
                self._remove(event, partitions)
            case EntryType.MEMBER_RECONCILED if event.member_id is not None:
                self._assigned[event.member_id] = flat(event.assigned)
            case EntryType.MEMBER_REMOVED if event.member_id is not None:
                self._assigned.pop(event.member_id, None)

    def _remove(self, event: HistoryEntry, partitions: Partitions) -> None:
        """Remove the partitions of `event` from the open requests and from the initialized partitions.

        In an observed group, the entry about a deletion has topics without partition numbers, because Kafka's
        log does not have them. Then all partitions of these topics are removed.
        """
        whole_topics = {topic for topic, numbers in (event.partitions or {}).items() if not numbers}
        tracked = (*self._requests, *self._initialized)
        removed = {p for p in tracked if p in partitions or p.topic in whole_topics}
        self._requests = {p: request for p, request in self._requests.items() if p not in removed}
        self._initialized -= removed

    def _fail(self, event: HistoryEntry, partitions: Partitions) -> None:
        """Record the error of the failed or timed-out requests for `partitions`, or remove the requests."""
        for partition in partitions & self._requests.keys():
            if event.observed or event.rule in _CANCEL_RULES:
                # The error is unknown because the group is observed, or nothing requests it again.
                del self._requests[partition]
            elif event.error_code is not None:
                request = self._requests[partition]
                self._requests[partition] = replace(
                    request, error_code=event.error_code, is_open=event.rule in _RETRY_RULES
                )

    def states(self) -> SharePartitionStates:
        """Return the states after the entries so far, with one request for all partitions that share it."""
        by_request = grouped((request, partition) for partition, request in self._requests.items())
        return SharePartitionStates(
            initialized=len(self._initialized),
            idle=by_topic(self._initialized.difference(*self._assigned.values())) if self._assigned else {},
            asked=[
                ShareStateRequest(
                    task=request.task,
                    is_deletion=request.is_deletion,
                    since_ms=request.since_ms,
                    partitions=by_topic(partitions),
                    error_code=request.error_code,
                    is_open=request.is_open,
                )
                for request, partitions in sorted(by_request.items(), key=lambda item: item[0].since_ms)
            ],
        )


MAX_REQUESTS = 8


def share_lines(shares: SharePartitionStates, now_ms: int) -> Lines:
    """Yield unfinished requests to the share coordinator, the oldest first, and partitions without
    members.
    """
    requests = [request_text(request, now_ms) for request in shares.asked[:MAX_REQUESTS]]
    yield from listing("Waiting", requests, len(shares.asked) - MAX_REQUESTS)
    if shares.idle:
        number = count(partition_count(shares.idle), "partition")
        yield "Idle", f"{number} initialized, but without a member: {partitions_text(shares.idle)}"


def request_text(request: ShareStateRequest, now_ms: int) -> str:
    """Return a text such as `orders 0-3: initializing for 31.0 s, last error 15
    COORDINATOR_NOT_AVAILABLE`.
    """
    what = "deleting the state" if request.is_deletion else "initializing"
    lasted = duration_text(max(now_ms - request.since_ms, 0))
    task = "" if request.task is None else f" (task {request.task})"
    which = partitions_text(request.partitions)
    if not request.is_open:
        then = "a DeleteGroups" if request.is_deletion else "the next heartbeat"
        return f"{which}: {error_text(request.error_code)}; {then} retries"
    error = "" if request.error_code is None else f", last {error_text(request.error_code)}"
    return f"{which}: {what} for {lasted}{error}{task}"


def error_text(code: int | None) -> str:
    """Return a text such as `error 15 COORDINATOR_NOT_AVAILABLE`."""
    name = None if code is None else name_of(code)
    return f"error {code}" if name is None else f"error {code} {name}"


# The settings of a group that the coordinator reads, in the order of `state.kafka.share.heartbeat`.
_SETTINGS = ("share.assignment.interval.ms", "share.heartbeat.interval.ms", "share.session.timeout.ms")
_SET_FOR_GROUP = "DYNAMIC_GROUP_CONFIG"  # Kafka's source of a setting that is set for the group itself
_TO_DO = "set or delete it through the gateway"

UNKNOWN = (
    "the brokers do not show the group's settings, which may differ: the principal needs DESCRIBE_CONFIGS on "
    "the group"
)


def settings_notes(client_config: ClientConfig, group_id: str, view: GroupSnapshot | None) -> list[str]:
    """Return a note for each setting that differs between the group's `view` and the brokers.

    If the brokers do not show the settings, the only note is UNKNOWN. Raises KafkaError.
    """
    brokers = _broker_settings(client_config, group_id)
    own = {} if view is None or not view.configs else view.configs
    return [UNKNOWN] if brokers is None else difference_notes(own, brokers)


def difference_notes(own: Mapping[str, SettingValue], brokers: Mapping[str, str]) -> list[str]:
    """Return a note for each setting that differs between the coordinator and the brokers.

    `own` has the settings that the group overrides at the coordinator, `brokers` those at the brokers.
    """
    sentences = []
    for name in _SETTINGS:
        value = own.get(name)
        in_force = None if value is None else str(value)
        at_brokers = brokers.get(name)
        if in_force == at_brokers:
            continue
        if in_force is None:
            sentences.append(f"{name}={at_brokers} is set only at the brokers and has no effect: {_TO_DO}")
        else:
            brokers_value = "not set" if at_brokers is None else at_brokers
            sentences.append(
                f"{name}={in_force} is in force, and is {brokers_value} at the brokers: {_TO_DO}"
            )
    return sentences


def _broker_settings(client_config: ClientConfig, group_id: str) -> dict[str, str] | None:
    """Return the group's own settings at the brokers, or None if the principal may not see them."""
    resource = ConfigResource(ConfigResourceType.GROUP, group_id, dict.fromkeys(_SETTINGS))
    with closing(kafka_clients.admin(client_config)) as admin:
        answer: dict[str, Any] = admin.describe_configs([resource], config_filter="all")
    configs = answer["group"][group_id]
    if not configs:
        return None
    return {
        name: config["value"] for name, config in configs.items() if config["config_source"] == _SET_FOR_GROUP
    }
