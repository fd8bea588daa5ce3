"""Finds a share group's unfinished requests to the share coordinator, partitions that no member has, and
settings that differ between the brokers and the group's coordinator (row SP27).

The coordinator reads three settings of the group, which the brokers store, too. A change through the gateway
reaches both. The settings differ after a change that was sent to a broker directly, or if a gateway ended in
the middle of a change.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot, NamedPartitions, ShareSnapshot
from kafka_why.contract.messages import SettingValue, name_of
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition, by_topic
from kafka_why.why.model import SharePartitionStates, ShareStateRequest
from kafka_why.why.moves import Partitions
from kafka_why.why.reconciling import flat
from kafka_why.wording import Lines, count, duration_text, listing, partitions_text

_NOTHING: Partitions = frozenset()
# Rows of errors after which the coordinator retries, and of errors that undo the request.
_RETRIED, _NO_LONGER_REQUESTED = ("SI10", "SI11"), ("SO12",)


def open_requests(share: ShareSnapshot) -> list[ShareStateRequest]:
    """Return a request for each open task and each last error of its partitions."""
    found = []
    for task in share.tasks or ():
        by_code: dict[int, NamedPartitions] = {}
        for topic in task.topics:
            numbers = by_code.setdefault(topic.error_code, {}).setdefault(topic.topic_name, [])
            numbers += topic.partitions
        found += [
            ShareStateRequest(
                task=task.task,
                is_deletion=task.kind == "delete",
                since_ms=task.asked_at_ms,
                partitions=partitions,
                error_code=code or None,
                is_open=True,
            )
            for code, partitions in by_code.items()
        ]
    return found


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the share coordinator about a partition."""

    task: str | None
    is_deletion: bool
    since_ms: int
    error_code: int | None = None
    is_open: bool = True  # False after an end with `error_code`; the next heartbeat then starts a new request


def share_partitions_after(entries: Iterable[HistoryEntry]) -> SharePartitionStates | None:
    """Return the states of a share group's partitions after these entries, or None for another group."""
    tracker, last = _ShareStateTracker(), None
    for event in entries:
        last = event
        if event.group_type == "share":
            tracker.apply(event)
    if last is None or last.group_type != "share" or last.type is EntryType.GROUP_DELETED:
        return None
    return tracker.states()


class _ShareStateTracker:
    def __init__(self) -> None:
        self._requests: dict[TopicPartition, _Request] = {}
        self._initialized: set[TopicPartition] = set()
        self._assigned: dict[MemberId, Partitions] = {}

    def apply(self, event: HistoryEntry) -> None:
        partitions, task = flat(event.partitions), None if event.observed else event.cause
        match event.type:
            case EntryType.SHARE_PARTITIONS_INITIALIZING:
                self._requests.update(dict.fromkeys(partitions, _Request(task, False, event.at_ms)))
            case EntryType.SHARE_PARTITIONS_DELETING:
                self._remove(event, partitions)
                self._requests.update(dict.fromkeys(partitions, _Request(task, True, event.at_ms)))
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
        # A deletion in an observed group names topics without partitions.
        topics = {topic for topic, numbers in (event.partitions or {}).items() if not numbers}
        gone = {p for p in (*self._requests, *self._initialized) if p in partitions or p.topic in topics}
        self._requests = {p: request for p, request in self._requests.items() if p not in gone}
        self._initialized -= gone

    def _fail(self, event: HistoryEntry, partitions: Partitions) -> None:
        """Record the error of failed or timed-out requests."""
        for partition in partitions & self._requests.keys():
            if event.observed or event.rule in _NO_LONGER_REQUESTED:
                # It is no longer needed, or the error of the observed group is unknown.
                del self._requests[partition]
            elif event.error_code is not None:
                request = self._requests[partition]
                self._requests[partition] = replace(
                    request, error_code=event.error_code, is_open=event.rule in _RETRIED
                )

    def states(self) -> SharePartitionStates:
        assigned = _NOTHING.union(*self._assigned.values())
        by_request: dict[_Request, list[TopicPartition]] = {}
        for partition, request in self._requests.items():
            by_request.setdefault(request, []).append(partition)
        return SharePartitionStates(
            initialized=len(self._initialized),
            idle=by_topic(self._initialized - assigned) if self._assigned else {},
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
        number = count(sum(map(len, shares.idle.values())), "partition")
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


# In the order of `state.kafka.share.heartbeat`, which the coordinator reads.
_NAMES = ("share.assignment.interval.ms", "share.heartbeat.interval.ms", "share.session.timeout.ms")
_OWN = "DYNAMIC_GROUP_CONFIG"
_TO_DO = "set or delete it through the gateway"

UNKNOWN = (
    "the brokers do not show the group's settings, which may differ: the principal needs DESCRIBE_CONFIGS on "
    "the group"
)


def settings_notes(client_config: ClientConfig, group_id: str, view: GroupSnapshot | None) -> list[str]:
    """Return a note for each setting that differs between the group's `view` and the brokers.

    Raises KafkaError. Return UNKNOWN if the brokers do not show the settings.
    """
    brokers = _broker_settings(client_config, group_id)
    own = {} if view is None or not view.configs else view.configs
    return [UNKNOWN] if brokers is None else differing(own, brokers)


def differing(own: Mapping[str, SettingValue], brokers: Mapping[str, str]) -> list[str]:
    """Return a note for each setting that differs between the coordinator, `own`, and the `brokers`."""
    sentences = []
    for name in _NAMES:
        here = None if (value := own.get(name)) is None else str(value)
        there = brokers.get(name)
        if here == there:
            continue
        if here is None:
            sentences.append(f"{name}={there} is set only at the brokers and has no effect: {_TO_DO}")
        else:
            at_brokers = "not set" if there is None else there
            sentences.append(f"{name}={here} is in force, and is {at_brokers} at the brokers: {_TO_DO}")
    return sentences


def _broker_settings(client_config: ClientConfig, group_id: str) -> dict[str, str] | None:
    """Return the group's own settings at the brokers, or None if the principal may not see them."""
    resource = ConfigResource(ConfigResourceType.GROUP, group_id, dict.fromkeys(_NAMES))
    with closing(kafka_clients.admin(client_config)) as admin:
        answer: dict[str, Any] = admin.describe_configs([resource], config_filter="all")
    found = answer["group"][group_id]
    if not found:
        return None
    return {name: config["value"] for name, config in found.items() if config["config_source"] == _OWN}
