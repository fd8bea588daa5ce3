"""Pins the last committed batch beside the checkpoint, so that a checkpoint that lost it is detected."""

import time
from collections.abc import Callable, Mapping

from checkpoints.checkpoint import Checkpoint
from kafka_why.local_files import FolderNotWritable

# Each pin is synced to the disk, which may also hold the broker's log.
INTERVAL_S = 1.0
# A driver that lost the topics may replace the plan of the second batch of its successor, not of a later one.
FIRST_BATCHES = 3


class CommittedPin:
    """Pins the last committed batch of a checkpoint. A full disk is no error, because a later batch will be
    pinned.
    """

    def __init__(
        self, checkpoint: Checkpoint, topic: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkpoint = checkpoint
        self._topic = topic
        self._now_s = now_s
        self._batch = -1
        self._seen: tuple[int, Mapping[int, int]] = (-1, {})
        self._taken_s = float("-inf")
        self._count = 0

    def pin_often(self, batch: int, ends: Mapping[int, int]) -> None:
        """Pin a committed batch: the first ones each, later ones unless another was pinned within a second.

        `ends` are the offsets, by partition, up to which it really read. The plan in the checkpoint may have
        been replaced since by a driver that lost the topics (docs/decisions/0019-a-standby.md).
        """
        self._seen = (batch, ends)
        self._count += 1
        if self._count <= FIRST_BATCHES or self._now_s() - self._taken_s >= INTERVAL_S:
            self.pin(batch)

    def pin(self, batch: int) -> None:
        """Pin a batch now, with its plan's offsets if `pin_often` did not get it. -1 means none."""
        if batch <= self._batch:
            return
        self._taken_s = self._now_s()
        try:
            seen, ends = self._seen
            self._checkpoint.pin_committed(batch, self._topic, ends if seen == batch else None)
        except FolderNotWritable:
            return
        self._batch = batch
