"""A client whose requests go to the core in this process instead of the requests topic."""

from concurrent.futures import Future
from typing import Any

from clients.coordinator_client import CoordinatorClient, Header
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup, step
from state.timeline import Row, StepFunction, Timeline


class CoreClient(CoordinatorClient):
    """The pure core as the coordinator of these groups. A request is handled when its answer is awaited.

    `sent` are the requests, `sent_first` is the number of requests that were sent before the first wait.
    """

    def __init__(self, *groups: AnyGroup, step: StepFunction = step) -> None:
        self.client_id = "admin"
        self.reply_partition = 0
        self.sent: list[Any] = []
        self.sent_first = 0
        self._step = step
        self.timelines = {group.group_id: self._timeline(group.group_id, group) for group in groups}

    @property
    def request_partitions(self) -> int:
        return 1

    def header(self, group_id: str, api_version: int = 0) -> Header:
        return Header(
            group_id=group_id,
            correlation_id=str(len(self.sent)),
            reply_partition=0,
            api_version=api_version,
            client_id=self.client_id,
            client_host="",
        )

    def send(self, request: Any, *, timeout_ms: int | None = None) -> Future[Any]:
        self.sent.append(request)
        return _Answer(self, request)

    def apply(self, request: Any, at_ms: int = 0) -> Any:
        """Apply a request. Return the last response, or None if there is none yet."""
        name = request.group_id
        timeline = self.timelines.setdefault(name, self._timeline(name, None))
        if timeline.group is not None:
            at_ms = max(at_ms, timeline.group.clock_ms)
        timeline.apply(Row(at_ms, f"requests-0-{len(self.sent)}", request))
        replies = [reply for effects in timeline.drain_effects() for reply in effects.replies]
        return replies[-1].response if replies else None

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def _timeline(self, group_id: str, group: AnyGroup | None) -> Timeline:
        return Timeline(group_id, group, CoordinatorConfig(), step=self._step)


class _Answer(Future[Any]):
    def __init__(self, client: CoreClient, request: Any) -> None:
        super().__init__()
        self._client, self._request = client, request

    def result(self, timeout: float | None = None) -> Any:
        self._client.sent_first = self._client.sent_first or len(self._client.sent)
        return self._client.apply(self._request)
