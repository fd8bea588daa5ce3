"""The warnings of `run` about groups of the embedded broker's own coordinator."""

import structlog

from kafka_why.broker_groups import BrokerGroup, BrokerGroups, sentence
from streaming.service.coordinator import Coordinator

log = structlog.get_logger()


class OtherGroups(BrokerGroups):
    """Watches the broker of this coordinator for groups of its own. With `is_logged` each is logged once."""

    def __init__(self, coordinator: Coordinator, *, is_logged: bool) -> None:
        super().__init__(
            coordinator.options.client_config,
            lambda group: log.warning(self._sentence(group)) if is_logged else None,
        )
        self._coordinator = coordinator

    def sentences(self) -> list[str]:
        """Return a sentence for each group that is there now."""
        return [self._sentence(group) for group in self.groups]

    def _sentence(self, group: BrokerGroup) -> str:
        servers = self._coordinator.options.client_config.bootstrap_servers
        return sentence(group, servers, self._coordinator.gateway_address)
