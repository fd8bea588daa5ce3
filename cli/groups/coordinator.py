"""The coordinator behind the subcommands of `groups`, which read and change its groups by requests."""

from functools import cached_property

from clients.coordinator_client import CoordinatorClient
from clients.pending import RequestTimedOut
from kafka_why.cli.groups.common import Cluster
from kafka_why.contract.codec import PendingTransaction
from kafka_why.contract.history_reader import AnyView
from kafka_why.groups.gather import GroupDescriber
from kafka_why.groups.list_groups import pending_transactions
from operations.admin.requests import GroupRequests, ObservedGroups

CLIENT_ID = "group-coordinator-groups"


class CoordinatorCluster(Cluster):
    """A cluster with a coordinator of this project, or with an observer, whose groups are read only."""

    @cached_property
    def requests(self) -> GroupRequests:
        """The requests of an administrator."""
        if self.layout.is_observed:
            return ObservedGroups(self._client_config, self.layout, self._timeout_ms)
        client = CoordinatorClient(
            self._client_config, self.layout, client_id=CLIENT_ID, request_timeout_ms=self._timeout_ms
        )
        return GroupRequests(self._stack.enter_context(client))

    @property
    def described_by(self) -> GroupDescriber:
        """The source of descriptions: requests, or the brokers' own `__consumer_offsets`."""
        return self.requests if self.is_set_up else super().described_by

    def answered_groups(self) -> list[AnyView]:
        """Return the groups with every change that the coordinator has acknowledged."""
        self.requests.wait_for_views()
        return self.groups()

    def pending_transactions(self) -> list[PendingTransaction]:
        """Return the pending transactions, with every change that the coordinator has acknowledged."""
        self.requests.wait_for_views()
        return pending_transactions(self._client_config, self.layout, self._timeout_ms)

    def reason(self, error: Exception) -> str:
        """Return why a command failed. If the coordinator did not answer in time, add a hint."""
        if isinstance(error, RequestTimedOut):
            return (
                f"{error}. Is the coordinator with the topics {self._prefix}-* running? See also --timeout."
            )
        return super().reason(error)
