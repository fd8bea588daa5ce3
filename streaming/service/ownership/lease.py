"""The lease: one coordinator's claim on its topics, taken in an order of steps that makes a takeover safe.

The order is proven in docs/decisions/0019-a-standby.md: claim, fence, and only then read the plans of an
earlier owner.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import structlog
from kafka.errors import KafkaError

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Identity
from checkpoints.upgrades import check_planned, code_version
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.claims import Claim
from kafka_why.contract.layout import TopicLayout
from streaming.query.owner_guard import OwnerGuard
from streaming.service.can_continue import check_can_continue
from streaming.service.clock.ticker import fence
from streaming.service.ownership.owner import TopicsOwnership, claim_of
from streaming.service.ownership.standby import Standby

log = structlog.get_logger()


class Lease:
    """A coordinator's lease on the topics, which excludes other coordinators until it is released. Not safe
    for threads.

    `folder` is locked by this process. If `is_shared`, the checkpoint is elsewhere, so the lock does not
    protect it. `tick_interval_ms` is the longest interval between clock records. All methods but `release`
    and `close` raise KafkaError.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        folder: Path,
        *,
        is_shared: bool,
        tick_interval_ms: int,
        take_over: bool,
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._folder = folder
        self._is_shared = is_shared
        self._tick_interval_ms = tick_interval_ms
        self._take_over = take_over
        self.ownership = TopicsOwnership(client_config, layout)

    @property
    def guard(self) -> OwnerGuard | None:
        """The check for every task, or None if the folder's lock excludes other coordinators."""
        if not self._is_shared:
            return None
        return OwnerGuard(self._client_config, self._layout.owner_topic, self.ownership.epoch)

    def acquire(self, checkpoint: Checkpoint, identity: Identity) -> None:
        """Claim the topics for the state in this checkpoint. Raises NotOwner, FolderError."""
        wanted = self._claim_for(checkpoint, identity)
        self.ownership.claim(wanted, take_over=self._take_over, moved=identity.moved)
        self._begin(checkpoint)

    def acquire_when_free(
        self,
        checkpoint: Checkpoint,
        identity: Identity,
        stopping: threading.Event,
        on_reason: Callable[[str], None],
        check: Callable[[], None],
        claimed: Callable[[], object],
    ) -> bool:
        """Wait until the topics are free and claim them. Return False if `stopping` was set before.

        `on_reason` is called with the reason to wait, `check` once per poll. An error of `check` ends the
        wait. `claimed` is called after the claim. Raises FolderError, and NotOwner if the topics belong to
        another state.
        """
        standby = Standby(self._client_config, self._layout, self.ownership, on_reason, check)
        wanted = self._claim_for(checkpoint, identity)
        if not standby.claim_when_silent(wanted, stopping, take_over=self._take_over, moved=identity.moved):
            return False
        claimed()
        self._begin(checkpoint)
        return True

    def release(self) -> None:
        """Let a standby take over at once, because this coordinator has stopped completely."""
        try:
            self.ownership.release()
        except KafkaError as error:
            log.warning("a standby has to wait for silence", error=repr(error))

    def close(self) -> None:
        """Close the connection. The claim stays."""
        self.ownership.close()

    def _claim_for(self, checkpoint: Checkpoint, identity: Identity) -> Claim:
        return claim_of(
            identity,
            self._folder,
            self._tick_interval_ms,
            checkpoint=str(checkpoint) if self._is_shared else None,
            above_epoch=checkpoint.newest_owner(),
        )

    def _begin(self, checkpoint: Checkpoint) -> None:
        epoch = self.ownership.epoch
        layout = self._layout
        fence(self._client_config, layout.requests_topic, layout.request_partitions, epoch)
        check_planned(checkpoint, code_version())
        checkpoint.own(epoch)
        check_can_continue(self._client_config, checkpoint)
