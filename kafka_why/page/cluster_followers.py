"""The threads that follow the groups of the cluster's own coordinator for the page: `OffsetsFollower` by
`__consumer_offsets`, `PollingFollower` by polls. They update a Fleet, the page's data of all groups.

`OffsetsFollower` first reads the last minutes of every partition. It then reads older records, and new ones
at the same time. The principal needs only READ on the topic. If it may also list groups, rebalances in
progress are shown, too.
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
from kafka_why.lag.lag_poller import LagPoller
from kafka_why.lifetimes import OutageWarning
from kafka_why.now import now_ms
from kafka_why.observed.polled import PolledGroup
from kafka_why.observed.view import view_of
from kafka_why.page.fleet import WINDOW_MS, Fleet
from kafka_why.page.words import thousands, utc_time
from kafka_why.stored_groups import MAX_GROUPS, GroupUpdate, LogPart, StoredGroups, committed_offsets
from kafka_why.stored_log import COMPACTED, LogWalk, OpenTransactions, StoredLog
from kafka_why.topic_reader import FollowerThread, names_on
from kafka_why.why.history import History
from kafka_why.why.live_sources import NOT_SEEN_BY_POLLS
from kafka_why.why.polls import GroupPoller, polling_client

FIRST_MS = 600_000
"""The time before now whose records are read first."""
SLICE_RECORDS = 20_000
"""Records of one partition that are read before the ends of all partitions are polled again."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 50_000
"""The maximum size of the records that stay in memory while older ones are read, and the maximum number of
entries of all groups, about 1.8 kB each. Above either limit, no older records are read.
"""
LIST_INTERVAL_S = 2.0
_POLL_S = 0.3
_TIMEOUT_MS = 10_000
_TRIM_INTERVAL_S = 30.0
_REBALANCING_STATES = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@dataclass(slots=True)
class _Partition:
    """The part of a partition that has been read."""

    begin: int  # first offset of the log
    first_read: int  # first offset that was read
    next_offset: int  # offset after the last that was read
    first_read_ms: int  # time of the first record that was read, or the earliest time that it can have
    records: int = 0  # number of records that were read
    complete_from_ms: int = 0  # time of the first record after the last gap that compaction left, or 0
    transactions: OpenTransactions = field(default_factory=OpenTransactions)

    @property
    def complete_since_ms(self) -> int:
        """The time since which all records of the partition have been read, or 0 if none are missing.

        Records are missing before the last gap that compaction left, and before the first record that was
        read, if the log has older ones.
        """
        has_unread = self.first_read > self.begin
        return max(self.complete_from_ms, self.first_read_ms if has_unread else 0)


class OffsetsFollower(FollowerThread):
    """A thread that updates a fleet from `__consumer_offsets`. Stopping it takes at most one request.

    It survives an outage of the brokers, and reads the missed records later.
    """

    def __init__(self, client_config: ClientConfig, fleet: Fleet, reader: str = "page") -> None:
        self._client_config = client_config
        self._fleet = fleet
        super().__init__(f"{reader}-offsets-follower", f"reading {KAFKAS_OFFSETS_TOPIC} for the {reader}")
        self._listing_warning = OutageWarning("listing the groups")
        self._trimmed_at_s = self._listed_at_s = float("-inf")
        self._listed_states: dict[str, str] | None = None
        """The states of the groups that the brokers list, or None before the first list."""
        self._rebalancing: dict[str, tuple[str, int]] = {}
        """The state of each group that the brokers list as rebalancing, and since when they list it."""
        self._reset()

    def _reset(self) -> None:
        self._groups = StoredGroups(names_on(self._client_config))
        self._partitions: dict[int, _Partition] = {}
        self._is_full = False
        self._lag_poller = LagPoller(self._fleet.lags)

    def remarks(self) -> list[str]:
        """Return remarks on the page's source, and on what is missing."""
        partitions = list(self._partitions.values())
        records_read = sum(one.records for one in partitions)
        unread = sum(one.first_read - one.begin for one in partitions)
        complete_since_ms = max((one.complete_since_ms for one in partitions), default=0)
        remarks = [
            f"made of about {thousands(records_read)} records of the brokers' own {KAFKAS_OFFSETS_TOPIC}"
        ]
        if complete_since_ms:
            why = "are not read, to bound the memory" if self._is_full else "are being read"
            missing = f"up to {thousands(unread)} older records {why}" if unread else COMPACTED
            remarks.append(f"complete since {utc_time(complete_since_ms)} UTC; {missing}")
        if self._groups.left_out:
            remarks.append(f"more than {thousands(MAX_GROUPS)} groups: the others are left out")
        remarks += self._listed_remarks()
        remarks.append(
            "`observe` also records what brokers delete, when rebalances begin, and which members they await"
        )
        return remarks

    def _listed_remarks(self) -> Iterable[str]:
        if self._listed_states is None:
            return
        with_records = set(self._fleet.group_ids())
        if with_records and not self._listed_states:
            yield (
                "this principal may not list groups (DESCRIBE on the cluster), so a rebalance is shown "
                "when it has ended"
            )
        if missing := self._listed_states.keys() - with_records:
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
                self._reset()  # the topic was created again
                raise

    def _step(self, stored: StoredLog, admin: KafkaAdminClient) -> None:
        if not self._partitions:
            self._seek_recent(stored)
        self._list_groups(admin)
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

    def _seek_recent(self, stored: StoredLog) -> None:
        """Begin each partition at its first record of the last FIRST_MS, or at its end if it has none."""
        begins, ends = stored.offsets(OffsetSpec.EARLIEST), stored.offsets(OffsetSpec.LATEST)
        at_ms = now_ms() - FIRST_MS
        recent = stored.offsets(at_ms)
        for partition, begin in begins.items():
            has_recent = recent[partition] >= 0
            first = recent[partition] if has_recent else ends[partition]
            self._partitions[partition] = _Partition(
                begin, first_read=first, next_offset=first, first_read_ms=at_ms
            )

    def _read_new(self, stored: StoredLog) -> None:
        """Read all partitions to the ends that they have now."""
        ends = stored.offsets(OffsetSpec.LATEST)
        for partition, at in self._partitions.items():
            while at.next_offset < ends[partition] and not self._stopped.is_set():
                end = min(ends[partition], at.next_offset + SLICE_RECORDS)
                part, at.next_offset = self._read(stored, partition, at.next_offset, end, at.transactions)
                self._update_fleet(self._groups.append(partition, part))

    def _read_older(self, stored: StoredLog) -> bool:
        """Read the next older slice of one partition. Return False if none is left, or memory is full."""
        with_older = [number for number, at in self._partitions.items() if at.first_read > at.begin]
        if not with_older or self._is_full:
            if not self._fleet.is_complete:
                self._groups.forget_records()
                self._fleet.mark_complete()
            return False
        # Choose the partition whose first record read is the newest.
        partition = max(with_older, key=lambda number: self._partitions[number].first_read_ms)
        at = self._partitions[partition]
        first = max(at.begin, at.first_read - SLICE_RECORDS)
        part, _ = self._read(stored, partition, first, at.first_read, OpenTransactions())
        self._update_fleet(self._groups.prepend(partition, part, now_ms() - WINDOW_MS))
        at.first_read = first
        at.first_read_ms = at.first_read_ms if part.first_ms is None else part.first_ms
        self._is_full = self._groups.kept_bytes > MAX_KEPT_BYTES or self._fleet.total_entries() > MAX_ENTRIES
        return True

    def _read(
        self, stored: StoredLog, partition: int, first: int, end: int, transactions: OpenTransactions
    ) -> tuple[LogPart, int]:
        """Read the records from `first` to before `end`. Return them, and the offset to read next."""
        walk, part = LogWalk(first, end, wanted=b""), LogPart(first, end, transactions)
        at = self._partitions[partition]
        for batch in stored.read(partition, walk):
            part.take(batch)
            at.records += batch.records_count
        if not walk.is_complete:
            at.complete_from_ms = max(at.complete_from_ms, walk.complete_from_ms or 0)
        return part, walk.next_offset

    def _update_fleet(self, updates: Iterable[GroupUpdate]) -> None:
        for group in updates:
            if group.entries and not group.replaces_entries:
                # The new entries may have ended the rebalance. If not, the next list has it again.
                self._rebalancing.pop(group.group_id, None)
            view = self._with_listed_state(group.group_id, group.view)
            self._fleet.update_group(
                group.group_id,
                view,
                group.entries,
                group.offsets,
                now_ms(),
                replaces_entries=group.replaces_entries,
            )

    def _with_listed_state(self, group_id: str, view: GroupSnapshot | None) -> GroupSnapshot | None:
        """Return the view. If the brokers list the group as rebalancing, it has the listed state."""
        if view is None or group_id not in self._rebalancing:
            return view
        state, since_ms = self._rebalancing[group_id]
        return replace(view, state=state, state_timestamp_ms=since_ms)

    def _list_groups(self, admin: KafkaAdminClient) -> None:
        """List the groups every LIST_INTERVAL_S, because the log has a rebalance only when it ends."""
        if time.monotonic() - self._listed_at_s < LIST_INTERVAL_S:
            return
        self._listed_at_s = time.monotonic()
        try:
            groups = admin.list_groups()
        except KafkaError as error:
            self._listing_warning.failed(error)
            return
        self._listing_warning.worked()
        self._listed_states = {group["group_id"]: group.get("group_state", "") for group in groups}
        rebalancing_before, at_ms = self._rebalancing, now_ms()
        self._rebalancing = {}
        for group_id, state in self._listed_states.items():
            if state in _REBALANCING_STATES:
                state_before, since_ms = rebalancing_before.get(group_id, ("", 0))
                self._rebalancing[group_id] = state, since_ms if state == state_before else at_ms
        # Update the views of groups that have begun or ended to rebalance, or have another state.
        for group_id in {name for name, _ in rebalancing_before.items() ^ self._rebalancing.items()}:
            view = self._with_listed_state(group_id, self._groups.view(group_id))
            if view is not None:
                self._fleet.set_view(group_id, view)


MAX_POLLED_GROUPS = 2_000
"""Maximum number of polled groups: the first ones of the brokers' list."""
_GROUP_PAUSE_S = 0.02
"""The pause between two groups. A group takes two requests."""
_ROUND_PAUSE_S = 1.0


class PollingFollower(FollowerThread):
    """A thread that updates a fleet by polling the groups' coordinators in rounds, until stopped."""

    def __init__(self, client_config: ClientConfig, fleet: Fleet, reader: str = "page") -> None:
        self._client_config = client_config
        self._fleet = fleet
        super().__init__(f"{reader}-polling-follower", f"polling the groups for the {reader}")
        self._lag_poller = LagPoller(fleet.lags)
        self._polled: dict[str, PolledGroup] = {}
        self._listed_count = 0
        self._undescribable = set[str]()  # groups that this principal may not describe
        self._has_last_poll_failed = False
        self._since_ms = now_ms()

    def remarks(self) -> list[str]:
        """Return remarks on the page's source, and on what is missing."""
        remarks = [f"made of polls since {utc_time(self._since_ms)} UTC. {NOT_SEEN_BY_POLLS}"]
        if self._listed_count > MAX_POLLED_GROUPS:
            remarks.append(f"more than {thousands(MAX_POLLED_GROUPS)} groups: the others are left out")
        if self._undescribable:
            remarks.append(
                f"{len(self._undescribable)} groups that this principal may not describe are left out"
            )
        return remarks

    def history(self, group_id: str, since_ms: int) -> History:
        """Return the fleet's entries of a group, which are of the last hour. `since_ms` is ignored."""
        facts = self._fleet.facts(group_id)
        entries = [] if facts is None else [*facts.entries]
        return History(entries, frozenset(), from_start=False, records_read=0)

    def _connect_and_follow(self) -> None:
        with closing(polling_client(self._client_config)) as admin:
            while not self._stopped.is_set():
                self._poll_round(admin)
                self._worked()
                self._fleet.mark_complete()
                self._fleet.trim(now_ms())
                self._stopped.wait(_ROUND_PAUSE_S)

    def _poll_round(self, admin: KafkaAdminClient) -> None:
        groups = admin.list_groups()
        self._listed_count = len(groups)
        types = {
            group["group_id"]: (group.get("group_type") or "").lower()
            for group in islice(groups, MAX_POLLED_GROUPS)
        }
        # A group that the brokers no longer list is polled once more, so that its end is recorded.
        for group_id in [*types, *(self._polled.keys() - types.keys())]:
            if self._stopped.wait(_GROUP_PAUSE_S):
                return
            self._poll(admin, group_id, types.get(group_id, ""))
            self._lag_poller.poll_if_allowed(admin)

    def _poll(self, admin: KafkaAdminClient, group_id: str, group_type: str) -> None:
        """Poll one group and update the fleet. Raises KafkaError if the previous group's poll failed, too."""
        poller = GroupPoller(admin, group_id, group_type)
        try:
            poll = poller.describe()
            committed = {} if poll is None else poller.committed()
        except GroupAuthorizationFailedError:
            self._undescribable.add(group_id)
            return
        except KafkaError:
            # A single failure may be of one broker, which coordinates some of the groups.
            if self._has_last_poll_failed:
                raise
            self._has_last_poll_failed = True
            return
        self._has_last_poll_failed = False
        self._undescribable.discard(group_id)
        polled = self._polled.setdefault(group_id, PolledGroup(group_id))
        polled.apply(poll, committed, now_ms())
        entries, polled.entries = polled.entries, []
        if poll is None:
            del self._polled[group_id]
        self._worked()
        view = None if polled.group is None else view_of(polled.group, polled.names)
        self._update_fleet(
            GroupUpdate(group_id, view, entries, committed_offsets(polled.group), replaces_entries=False)
        )

    def _update_fleet(self, update: GroupUpdate) -> None:
        self._fleet.update_group(
            update.group_id,
            update.view,
            update.entries,
            update.offsets,
            now_ms(),
            replaces_entries=update.replaces_entries,
        )
