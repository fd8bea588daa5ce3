"""The rows of the partitions of a share group."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from msgspec import Struct

from state.kafka.share_group import ShareGroup


class ShareRow(Struct, frozen=True, kw_only=True):
    """A partition of a share group, and what the share coordinator does with its state: `initializing`,
    `initialized` or `deleting`. One that is initialized and initializing has two rows.

    `task` is the open task of which it is a part, None if there is none, asked for at `asked_at_ms` with
    `state_epoch` and `start_offset`. `error_code` is that of the last answer, None before one.
    """

    group_id: str
    topic: str
    partition: int
    state: str
    task: str | None = None
    asked_at_ms: int | None = None
    state_epoch: int | None = None
    start_offset: int | None = None
    error_code: int | None = None
    topic_id: str


def share_partitions(group: ShareGroup) -> Iterator[ShareRow]:
    """Yield a row for each partition of which the share coordinator may know."""
    for topic_id, initialized in group.initialized.items():
        for number in initialized.partitions:
            yield _share(group, topic_id, initialized.name, number, "initialized")
    for topic_id, initializing in group.initializing.items():
        for number, asked in initializing.partitions.items():
            yield _share(
                group,
                topic_id,
                initializing.name,
                number,
                "initializing",
                task=asked.task or None,
                asked_at_ms=asked.at_ms,
                state_epoch=asked.state_epoch,
                start_offset=asked.start_offset,
                error_code=asked.error_code or None,
            )
    for topic_id, deleting in group.deleting.items():
        for number, code in deleting.partitions.items():
            yield _share(
                group,
                topic_id,
                deleting.name,
                number,
                "deleting",
                task=deleting.task or None,
                asked_at_ms=deleting.at_ms,
                error_code=code or None,
            )


def _share(
    group: ShareGroup, topic_id: bytes, topic: str, partition: int, state: str, **asked: Any
) -> ShareRow:
    return ShareRow(
        group_id=group.group_id,
        topic=topic,
        partition=partition,
        state=state,
        topic_id=str(UUID(bytes=topic_id)),
        **asked,
    )
