"""The threads that follow the groups of the cluster's own coordinator for the page, by `__consumer_offsets`
or by polls.

`OffsetsFollower` first reads the last minutes of every partition. It then reads older records while it
follows the ends. READ on the topic is enough. If the principal may list groups, a rebalance in progress is
shown, too.
"""

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

from kafka import KafkaAdminClient
from kafka.admin import OffsetSpec
from kafka.errors import GroupAuthorizationFailedError, KafkaError, OffsetOutOfRangeError
from msgspec.structs import replace

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.lag.brokers import LagPoller
from kafka_why.lifetimes import OutageWarning
from kafka_why.now import now_ms
from kafka_why.observed.polled import PolledGroup
from kafka_why.observed.view import view_of
from kafka_why.page.fleet import WINDOW_MS, Fleet
from kafka_why.page.words import thousands, utc_time
from kafka_why.stored_groups import MAX_GROUPS, GroupNews, LogPart, StoredGroups, committed_offsets
from kafka_why.stored_log import COMPACTED, LogWalk, OpenTransactions, StoredLog
from kafka_why.topic_reader import FollowerThread, names_on
from kafka_why.why.history import History
from kafka_why.why.live_sources import NOT_SEEN_BY_POLLS
from kafka_why.why.polls import GroupPoller, polling_client

FIRST_MS = 600_000
"""The last minutes, which are read first."""
SLICE_RECORDS = 20_000
"""Records of one partition that are read before the ends of all partitions are polled again."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 50_000
"""Limits of the records that are kept while older ones are read, and of the entries of all groups, about
1.8 kB each. No older record is read above either limit.
"""
LIST_INTERVAL_S = 2.0
_POLL_S = 0.3
_TIMEOUT_MS = 10_000
_TRIM_INTERVAL_S = 30.0
_UNDER_WAY = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@dataclass(slots=True)
class _Partition:
    """The part of a partition that has been read."""

    begin: int  # of the log
    low: int  # first offset that was read
    next: int  # offset after the last that was read
    low_ms: int  # time of the first record that was read
    records: int = 0  # their number
    whole_ms: int = 0  # time of the first record after the last gap that compaction left, or 0
    transactions: OpenTransactions = field(default_factory=OpenTransactions)


class OffsetsFollower(FollowerThread):
    """A thread that feeds a fleet from `__consumer_offsets`. Stopping it takes at most one request.

    It survives an outage of the brokers, and reads the missed records later.
    """

    def __init__(self, client_config: ClientConfig, fleet: Fleet, reader: str = "page") -> None:
        self._client_config = client_config
        self._fleet = fleet
        super().__init__(f"{reader}-offsets-follower", f"reading {KAFKAS_OFFSETS_TOPIC} for the {reader}")
        self._lists = OutageWarning("listing the groups")
        self._trimmed_at_s = self._listed_at_s = float("-inf")
        self._listed: dict[str, str] | None = None
        self._under_way: dict[str, tuple[str, int]] = {}
        self._begin()

    def _begin(self) -> None:
        self._groups = StoredGroups(names_on(self._client_config))
        self._partitions: dict[int, _Partition] = {}
        self._is_full = False
        self._lag_poller = LagPoller(self._fleet)

    def remarks(self) -> list[str]:
        """Return remarks on the page's source, and on what is missing."""
        partitions = list(self._partitions.values())
        read = sum(one.records for one in partitions)
        older = sum(one.low - one.begin for one in partitions)
        since_ms = [max(one.whole_ms, one.low_ms if one.low > one.begin else 0) for one in partitions]
        found = [f"made of about {thousands(read)} records of the brokers' own {KAFKAS_OFFSETS_TOPIC}"]
        if any(since_ms):
            why = "are not read, to bound the memory" if self._is_full else "are being read"
            rest = f"up to {thousands(older)} older records {why}" if older else COMPACTED
            found.append(f"complete since {utc_time(max(since_ms))} UTC; {rest}")
        if self._groups.left_out:
            found.append(f"more than {thousands(MAX_GROUPS)} groups: the others are left out")
        found += self._listed_remarks()
        found.append(
            "`observe` also records what brokers delete, when rebalances begin, and which members they await"
        )
        return found

    def _listed_remarks(self) -> Iterable[str]:
        if self._listed is None:
            return
        shown = set(self._fleet.group_ids())
        if shown and not self._listed:
            yield (
                "this principal may not list groups (DESCRIBE on the cluster), so a rebalance is shown "
                "when it has ended"
            )
        if missing := self._listed.keys() - shown:
            yield f"no record has been read yet of {len(missing)} groups that the brokers list"

    def _connect_and_follow(self) -> None:
        with (
            StoredLog(self._client_config, KAFKAS_OFFSETS_TOPIC) as stored,
            closing(kafka_clients.admin(self._client_config, request_timeout_ms=_TIMEOUT_MS)) as admin,
        ):
            try:
                while not self._stopped.is_set():
                    self._step(stored, admin)
            except OffsetOutOfRangeError:
                self._begin()  # the topic was created again
                raise

    def _step(self, stored: StoredLog, admin: KafkaAdminClient) -> None:
        if not self._partitions:
            self._seek(stored)
        self._list(admin)
        self._read_new(stored)
        has_older = self._read_older(stored)
        self._worked()
        self._lag_poller.poll_if_allowed(admin)
        if has_older:
            return
        if time.monotonic() - self._trimmed_at_s >= _TRIM_INTERVAL_S:
            self._fleet.trim(now_ms())
            self._trimmed_at_s = time.monotonic()
        self._stopped.wait(_POLL_S)

    def _seek(self, stored: StoredLog) -> None:
        begins, ends = stored.offsets(OffsetSpec.EARLIEST), stored.offsets(OffsetSpec.LATEST)
        at_ms = now_ms() - FIRST_MS
        recent = stored.offsets(at_ms)
        for partition, begin in begins.items():
            low = recent[partition] if recent[partition] >= 0 else ends[partition]
            self._partitions[partition] = _Partition(begin, low, low, at_ms)

    def _read_new(self, stored: StoredLog) -> None:
        ends = stored.offsets(OffsetSpec.LATEST)
        for partition, at in self._partitions.items():
            while at.next < ends[partition] and not self._stopped.is_set():
                end = min(ends[partition], at.next + SLICE_RECORDS)
                part, walk = self._read(stored, partition, LogWalk(at.next, end, b""), at.transactions)
                at.next = walk.next_offset
                self._take(self._groups.append(partition, part))

    def _read_older(self, stored: StoredLog) -> bool:
        """Read the next older slice of one partition. Return False if nothing older is left."""
        left = [number for number, at in self._partitions.items() if at.low > at.begin]
        if not left or self._is_full:
            if not self._fleet.is_complete:
                self._groups.forget_records()
                self._fleet.complete()
            return False
        # The partition that has been read the least far back.
        partition = max(left, key=lambda number: self._partitions[number].low_ms)
        at = self._partitions[partition]
        first = max(at.begin, at.low - SLICE_RECORDS)
        part, _ = self._read(stored, partition, LogWalk(first, at.low, b""), OpenTransactions())
        self._take(self._groups.prepend(partition, part, now_ms() - WINDOW_MS))
        at.low, at.low_ms = first, at.low_ms if part.first_ms is None else part.first_ms
        self._is_full = self._groups.kept_bytes > MAX_KEPT_BYTES or self._fleet.total_entries() > MAX_ENTRIES
        return True

    def _read(
        self, stored: StoredLog, partition: int, walk: LogWalk, transactions: OpenTransactions
    ) -> tuple[LogPart, LogWalk]:
        part = LogPart(walk.first, walk.end, transactions)
        at = self._partitions[partition]
        for batch in stored.read(partition, walk):
            part.take(batch)
            at.records += batch.record_count
        if not walk.is_whole:
            at.whole_ms = max(at.whole_ms, walk.whole_from_ms or 0)
        return part, walk

    def _take(self, news: Iterable[GroupNews]) -> None:
        for group in news:
            if group.entries and not group.anew:
                self._under_way.pop(group.group_id, None)
            shown = self._shown(group.group_id, group.view)
            self._fleet.take(group.group_id, shown, group.entries, group.offsets, now_ms(), anew=group.anew)

    def _shown(self, group_id: str, view: GroupSnapshot | None) -> GroupSnapshot | None:
        """Return the view with the state that the brokers list, if it is rebalancing."""
        if view is None or group_id not in self._under_way:
            return view
        state, since_ms = self._under_way[group_id]
        return replace(view, state=state, state_timestamp_ms=since_ms)

    def _list(self, admin: KafkaAdminClient) -> None:
        """List the groups, at most once in LIST_INTERVAL_S. The log has a rebalance only when it ends."""
        if time.monotonic() - self._listed_at_s < LIST_INTERVAL_S:
            return
        self._listed_at_s = time.monotonic()
        try:
            listed = admin.list_groups()
        except KafkaError as error:
            self._lists.failed(error)
            return
        self._lists.worked()
        self._listed = {group["group_id"]: group.get("group_state", "") for group in listed}
        before, at_ms = self._under_way, now_ms()
        self._under_way = {
            group_id: before[group_id] if before.get(group_id, ("",))[0] == state else (state, at_ms)
            for group_id, state in self._listed.items()
            if state in _UNDER_WAY
        }
        for group_id in {name for name, _ in before.items() ^ self._under_way.items()}:
            view = self._shown(group_id, self._groups.view(group_id))
            if view is not None:
                self._fleet.show(group_id, view)


# Polls, for a principal that may not read `__consumer_offsets`.

MAX_POLLED_GROUPS = 2_000
"""Maximum number of polled groups: the first ones of the brokers' list."""
_PAUSE_S = 0.02
"""The pause between two groups. A group takes two requests."""
_ROUND_S = 1.0


class PollingFollower(FollowerThread):
    """A thread that feeds a fleet by polling the groups' coordinators in rounds, until stopped."""

    def __init__(self, client_config: ClientConfig, fleet: Fleet, reader: str = "page") -> None:
        self._client_config = client_config
        self._fleet = fleet
        super().__init__(f"{reader}-polling-follower", f"polling the groups for the {reader}")
        self._lag_poller = LagPoller(fleet)
        self._polled: dict[str, PolledGroup] = {}
        self._listed = 0
        self._refused = set[str]()
        self._has_failed = False
        self._since_ms = now_ms()

    def remarks(self) -> list[str]:
        """Return remarks on the page's source, and on what is missing."""
        found = [f"made of polls since {utc_time(self._since_ms)} UTC. {NOT_SEEN_BY_POLLS}"]
        if self._listed > MAX_POLLED_GROUPS:
            found.append(f"more than {thousands(MAX_POLLED_GROUPS)} groups: the others are left out")
        if self._refused:
            found.append(f"{len(self._refused)} groups that this principal may not describe are left out")
        return found

    def history(self, group_id: str, since_ms: int) -> History:
        """Return a group's history: the fleet's entries of the last hour."""
        facts = self._fleet.facts(group_id)
        entries = [] if facts is None else [*facts.entries]
        return History(entries, frozenset(), from_start=False, records_read=0)

    def _connect_and_follow(self) -> None:
        with closing(polling_client(self._client_config)) as admin:
            while not self._stopped.is_set():
                self._round(admin)
                self._worked()
                self._fleet.complete()
                self._fleet.trim(now_ms())
                self._stopped.wait(_ROUND_S)

    def _round(self, admin: KafkaAdminClient) -> None:
        groups = admin.list_groups()
        self._listed = len(groups)
        types = {
            group["group_id"]: (group.get("group_type") or "").lower()
            for group in islice(groups, MAX_POLLED_GROUPS)
        }
        for group_id in [*types, *(self._polled.keys() - types.keys())]:
            if self._stopped.wait(_PAUSE_S):
                return
            self._poll(admin, group_id, types.get(group_id, ""))
            self._lag_poller.poll_if_allowed(admin)

    def _poll(self, admin: KafkaAdminClient, group_id: str, kind: str) -> None:
        poller = GroupPoller(admin, group_id, kind)
        try:
            poll = poller.describe()
            committed = {} if poll is None else poller.committed()
        except GroupAuthorizationFailedError:
            self._refused.add(group_id)
            return
        except KafkaError:
            if self._has_failed:  # the previous group failed, too, so not only one coordinator is down
                raise
            self._has_failed = True
            return
        self._has_failed = False
        self._refused.discard(group_id)
        polled = self._polled.setdefault(group_id, PolledGroup(group_id))
        polled.apply(poll, committed, now_ms())
        entries, polled.entries = polled.entries, []
        if poll is None:
            del self._polled[group_id]
        self._worked()
        view = None if polled.group is None else view_of(polled.group, polled.names)
        self._take([GroupNews(group_id, view, entries, committed_offsets(polled.group), anew=False)])

    def _take(self, news: Iterable[GroupNews]) -> None:
        for group in news:
            self._fleet.take(
                group.group_id, group.view, group.entries, group.offsets, now_ms(), anew=group.anew
            )
