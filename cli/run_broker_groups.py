"""What `run` says of groups of the embedded broker's own coordinator."""

from types import TracebackType
from typing import Self

import structlog

from kafka_why.broker_groups import BrokerGroup, BrokerGroups, sentence
from streaming.service.coordinator import Coordinator

log = structlog.get_logger()


class GroupsBeside:
    """Watches the broker of this coordinator. `is_logged`: each group is a log line, once."""

    def __init__(self, coordinator: Coordinator, *, is_logged: bool) -> None:
        self._coordinator = coordinator
        self._is_logged = is_logged
        self._watched = BrokerGroups(coordinator.options.client_config, self._found)

    def sentences(self) -> list[str]:
        """A sentence for each group that is there now."""
        return [self._sentence(group) for group in self._watched.groups]

    def _found(self, group: BrokerGroup) -> None:
        if self._is_logged:
            log.warning(self._sentence(group))

    def _sentence(self, group: BrokerGroup) -> str:
        servers = self._coordinator.options.client_config.bootstrap_servers
        return sentence(group, servers, self._coordinator.gateway_address)

    def __enter__(self) -> Self:
        self._watched.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watched.stop()
