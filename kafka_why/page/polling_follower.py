"""The thread that polls all groups for the page, where `__consumer_offsets` must not be read."""

from collections.abc import Iterable
from contextlib import closing
from itertools import islice

from kafka import KafkaAdminClient
from kafka.errors import GroupAuthorizationFailedError, KafkaError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.lag.brokers import LagPoller
from kafka_why.now import now_ms
from kafka_why.observed.polled import PolledGroup
from kafka_why.observed.view import view_of
from kafka_why.page.fleet import Fleet
from kafka_why.page.words import thousands, utc_time
from kafka_why.stored_groups import GroupNews, committed_offsets
from kafka_why.topic_reader import FollowerThread
from kafka_why.why.history import History
from kafka_why.why.live_sources import NOT_SEEN_BY_POLLS
from kafka_why.why.polls import GroupPoller, polling_client

MAX_GROUPS = 2_000
"""Groups that are polled, the first ones of the brokers' list."""
_PAUSE_S = 0.02
"""Between two groups, each of which takes two requests."""
_ROUND_S = 1.0


class PollingFollower(FollowerThread):
    """Feeds a fleet until stopped, with what the groups' coordinators say of each of them, round by round."""

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
        """Return what the page is made of, and what is missing."""
        found = [f"made of polls since {utc_time(self._since_ms)} UTC. {NOT_SEEN_BY_POLLS}"]
        if self._listed > MAX_GROUPS:
            found.append(f"more than {thousands(MAX_GROUPS)} groups: the others are left out")
        if self._refused:
            found.append(f"{len(self._refused)} groups that this principal may not describe are left out")
        return found

    def history(self, group_id: str, since_ms: int) -> History:
        """Return what the fleet has of a group, the entries of the last hour."""
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
            group["group_id"]: (group.get("group_type") or "").lower() for group in islice(groups, MAX_GROUPS)
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
            if self._has_failed:  # not only this group's coordinator is away
                raise
            self._has_failed = True
            return
        self._has_failed = False
        self._refused.discard(group_id)
        polled = self._polled.setdefault(group_id, PolledGroup(group_id))
        polled.take(poll, committed, now_ms())
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
