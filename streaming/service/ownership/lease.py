"""The lease: one coordinator's claim on its topics, made in steps whose order makes a takeover safe.

The order is proven in docs/decisions/0019-a-standby.md: claim, fence, and only then read the plans of an
earlier owner. The fence is a clock record with the new epoch on every partition, at which an earlier owner's
query fails.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import structlog
from kafka.errors import KafkaError
from msgspec import structs

from checkpoints.checkpoint import Checkpoint, check_planned, code_version
from checkpoints.metadata import Identity, Moved
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.claims import Claim
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import BackgroundThread
from streaming.query.owner_guard import OwnerGuard
from streaming.service.can_continue import check_can_continue
from streaming.service.clock.ticker import fence
from streaming.service.ownership.owner import (
    ClockRecords,
    NotOwner,
    TopicsOwnership,
    check_state,
    claim_of,
    is_same_folder,
    silence_ms,
)

# The standby: it waits until the owner of the topics is silent or has ended, and then claims them.
#
# The owner runs while it appends clock records (`streaming.service.ownership.owner`). Machines' clocks are
# not compared: the standby measures how long no clock record comes. Silence counts only while this process
# runs and a broker answers, because an unreachable broker silences every owner.


# The pause after each clock record of the owner. A standby then continues at the topic's end, so it reads
# only a small part of the requests topic.
PAUSE_S = 0.2
# The time for which one poll waits for a clock record. Claims are read between two polls.
POLL_S = 0.5
# A poll that took longer waited for a broker, or this process was suspended. It counts as POLL_S of silence.
LONG_POLL_S = 2.0
# An owner that has also lost its brokers gets this much longer to reconnect. Its producer waits up to
# `ticker.RECONNECT_MAX_MS`, then finds the leader and resends its records.
RETURN_S = 3.0


class StandbyThread(BackgroundThread):
    """A thread that runs `lead`, which waits and then takes over.

    `lead` gets a stack for the parts that it starts, which `stop` closes, and an event: `lead` returns soon
    after that is set. `on_error` is called in the thread if `lead` fails.
    """

    def __init__(
        self, lead: Callable[[ExitStack, threading.Event], None], on_error: Callable[[Exception], None]
    ) -> None:
        super().__init__("standby")
        self._lead = lead
        self._on_error = on_error
        self._started_parts = ExitStack()

    def stop(self) -> None:
        """End the wait, or stop the parts that were started after it."""
        super().stop()
        self._started_parts.close()

    def _run(self) -> None:
        try:
            self._lead(self._started_parts, self._stopped)
        except Exception as error:  # noqa: BLE001 - whatever ends a start
            if not self._stopped.is_set():
                log.error("the standby ends", reason=str(error))
                self._on_error(error)


class Silence:
    """The time for which the owner has been silent: the sum of the polls since its last clock record."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self.reset()

    def reset(self) -> None:
        """Start again at 0, because the owner has appended a record, or is a new one."""
        self.seconds = 0.0
        self._was_cut_off = False
        self._last_poll_s = self._now_s()

    def cut_off(self) -> None:
        """Start again at 0, because no broker answered, so the owner could not append a record. Until the
        next `reset`, the owner gets RETURN_S more to reconnect.
        """
        self.reset()
        self._was_cut_off = True

    def add_poll(self) -> None:
        """Add the time of a poll that found no record of the owner."""
        now_s = self._now_s()
        took_s = now_s - self._last_poll_s
        self._last_poll_s = now_s
        if took_s > LONG_POLL_S:
            # The brokers may have been unreachable, also for the owner.
            self._was_cut_off = True
            took_s = POLL_S
        self.seconds += took_s

    def is_longer_than(self, limit_ms: int) -> bool:
        """Return True if the silence exceeds `limit_ms`, plus RETURN_S if brokers were unreachable."""
        return self.seconds >= limit_ms / 1000 + (RETURN_S if self._was_cut_off else 0.0)


class Standby:
    """A standby, which waits for the topics and claims them. For one thread.

    `on_reason` is called with a sentence when the reason to wait changes, and `check` once per poll. An error
    of `check` ends the wait. `ownership` has no claim yet.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        ownership: TopicsOwnership,
        on_reason: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._ownership = ownership
        self._on_reason = on_reason
        self._check = check
        self._reported_reason = ""
        self._owner: Claim | None = None  # the claim that was in force at the last poll
        self._silence = Silence()

    def claim_when_silent(
        self, wanted: Claim, stopping: threading.Event, *, take_over: bool, moved: Moved | None = None
    ) -> bool:
        """Claim the topics as soon as their owner does not run, and return True. Return False if `stopping`
        was set before.

        The arguments are those of `TopicsOwnership.claim`. Raises NotOwner if the topics belong to another
        state, because waiting would be useless. The wait for an owner that was killed takes `silence_ms`. An
        owner that ends in order releases its claim, which ends the wait.
        """
        with closing(ClockRecords(self._client_config, self._layout)) as clock:
            self._silence.reset()
            while not stopping.is_set():
                self._check()
                try:
                    is_free = self._poll_is_free(wanted, clock, take_over=take_over, moved=moved)
                    if is_free and self._try_claim(wanted, take_over=take_over, moved=moved):
                        return True
                except KafkaError as error:
                    self._silence.cut_off()
                    self._report(f"no broker answers: {type(error).__name__}")
                    # After a broker was killed, kafka-python's consumers sometimes returned nothing more.
                    with suppress(KafkaError):
                        clock.reconnect()
                        self._ownership.reconnect()
                # Pause after a record or an error. A poll that found no record has already waited POLL_S.
                if not self._silence.seconds:
                    stopping.wait(PAUSE_S)
        return False

    def _poll_is_free(
        self, wanted: Claim, clock: ClockRecords, *, take_over: bool, moved: Moved | None
    ) -> bool:
        """Poll once, and return True if the topics can be claimed."""
        owner = self._ownership.claim_in_force(wanted.requests_topic_id)
        if owner is None:
            return True
        check_state(owner, wanted, moved, take_over=take_over)
        if self._owner is None or owner.claim_id != self._owner.claim_id:
            self._silence.reset()  # a new owner has not started its clock yet
        self._owner = owner
        if owner.is_released or is_same_folder(owner, wanted):
            return True
        if clock.wait_for_record(POLL_S):
            self._silence.reset()
        else:
            self._silence.add_poll()
        self._report(f"the coordinator that owns the topics runs: {owner}")
        if not self._silence.is_longer_than(silence_ms(owner.tick_interval_ms)):
            return False
        log.warning(
            "the owner of the topics is silent", owner=str(owner), silent_s=round(self._silence.seconds, 1)
        )
        return True

    def _try_claim(self, wanted: Claim, *, take_over: bool, moved: Moved | None) -> bool:
        """Claim the topics and return True. Return False if another coordinator was first."""
        wanted = structs.replace(wanted, since_ms=int(time.time() * 1000))
        try:
            self._ownership.claim(wanted, take_over=take_over, moved=moved, silent=self._owner)
        except NotOwner as error:
            if self._ownership.claim_in_force(wanted.requests_topic_id) is None:
                raise  # a coordinator runs although no claim is on the topic, so waiting is useless
            log.info("the topics could not be claimed", reason=str(error))
            return False
        return True

    def _report(self, reason: str) -> None:
        """Log the reason to wait and pass it on if it has changed."""
        if reason != self._reported_reason:
            self._reported_reason = reason
            log.info("standing by", reason=reason)
            self._on_reason(reason)


log = structlog.get_logger()


class Lease:
    """A coordinator's lease on the topics, which excludes other coordinators until it is released.

    `folder` is locked by this process. If `is_shared`, the checkpoint is elsewhere, so the lock does not
    protect it. `tick_interval_ms` is the longest interval between clock records. All methods but `release`
    and `close` raise KafkaError. Not safe for threads.
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
        """Return the claim to make. Its epoch will be above those of all owners in the checkpoint."""
        return claim_of(
            identity,
            self._folder,
            self._tick_interval_ms,
            checkpoint=str(checkpoint) if self._is_shared else None,
            above_epoch=checkpoint.newest_owner(),
        )

    def _begin(self, checkpoint: Checkpoint) -> None:
        """Fence earlier owners, and only then read the batches that they planned."""
        epoch = self.ownership.epoch
        layout = self._layout
        fence(self._client_config, layout.requests_topic, layout.request_partitions, epoch)
        check_planned(checkpoint, code_version())
        checkpoint.own(epoch)
        check_can_continue(self._client_config, checkpoint)
