"""Kills the coordinator at the worst moment: a batch's output is on the topics, its commit not yet written.

Spark writes `offsets/N` before batch N, the sink writes the output, then Spark writes `commits/N`. After a
kill between the last two, batch N runs again, and its output is on the topics twice.

The moment is short. So the coordinator is frozen (SIGSTOP) as soon as an answer of a batch appears, and the
checkpoint is read while it is frozen. If the commit is already there, the coordinator continues unharmed.
Early answers are of no batch.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from checkpoints.checkpoint import Checkpoint
from checkpoints.folder import Folder
from cli.demo.watch import NotSeen
from cli.processes.child import Child
from clients.answers import decode_response
from connections.client_config import ClientConfig
from records.codec import record_of
from records.early_answers import is_by_query
from records.layout import TopicLayout
from records.pack import unpack
from records.reader import TopicReader
from state.errors import ErrorCode
from state.kafka.responses import HeartbeatResponse, JoinGroupResponse
from state.messages import Response

_POLL_MS = 50


@dataclass(frozen=True, slots=True)
class Struck:
    """A hit: batch `batch` had answered `request`, and was not committed when all processes had ended.

    `answer` is the kind of the answer; `freezes` counts the attempts.
    """

    batch: int
    request: str
    answer: str
    freezes: int


def strike(
    coordinator: Child,
    folder: Path,
    client_config: ClientConfig,
    layout: TopicLayout,
    *,
    timeout_s: float,
    heartbeats_after_s: float,
    begin: Callable[[], None],
) -> Struck | None:
    """Kill `coordinator` between the write and the commit of a batch.

    `begin` is called when the reading of answers has begun. Answers to heartbeats count only after
    `heartbeats_after_s`. Returns None if the commit was written while the processes ended. Raises NotSeen if
    there was no chance within `timeout_s`.
    """
    freezes = 0
    with TopicReader(client_config) as reader:
        reader.start(end=reader.partitions_of(layout.responses_topic))
        begin()
        started_s = time.monotonic()
        while (elapsed_s := time.monotonic() - started_s) < timeout_s:
            for answer in _answers(reader):
                if not is_target(answer, heartbeats=elapsed_s >= heartbeats_after_s):
                    continue
                coordinator.freeze()
                freezes += 1
                batch = uncommitted_batch_of(folder, layout.requests_topic, answer.request)
                if batch is None:
                    coordinator.thaw()
                    break  # the remaining answers of this poll are older
                coordinator.kill()
                wait_until_gone(folder)
                if uncommitted_batch_of(folder, layout.requests_topic, answer.request) != batch:
                    return None
                kind = type(answer).__name__.removesuffix("Response")
                return Struck(batch, answer.request, kind, freezes)
    raise NotSeen(f"no answer of an uncommitted batch within {timeout_s:.0f} s")


def is_target(answer: Response, *, heartbeats: bool) -> bool:
    """Whether to strike at this answer: one that gives a new member its id, or to a heartbeat if enabled."""
    match answer:
        case JoinGroupResponse():
            return answer.error_code is ErrorCode.MEMBER_ID_REQUIRED
        case HeartbeatResponse():
            return heartbeats
        case _:
            return False


def wait_until_gone(folder: Path) -> None:
    """Wait until a killed coordinator's processes have ended, because its JVM holds the folder's lock."""
    with Folder(folder).locked():
        pass


def uncommitted_batch_of(folder: Path, requests_topic: str, request: str) -> int | None:
    """Return the batch that read this request if it is planned and uncommitted, or None."""
    checkpoint = Checkpoint.at(folder)
    batch = checkpoint.last_batch("offsets")
    if batch <= checkpoint.last_batch("commits"):
        return None
    _, partition, offset = record_of(request)
    first = checkpoint.planned_ends(batch - 1, requests_topic).get(partition, 0)
    end = checkpoint.planned_ends(batch, requests_topic).get(partition, 0)
    return batch if first <= offset < end else None


def _answers(reader: TopicReader) -> Iterator[Response]:
    # The last answer comes first, because it is most likely of an uncommitted batch.
    for record in reversed([record for record in reader.poll(_POLL_MS) if is_by_query(record.headers)]):
        for encoded in reversed(unpack(record.value)):
            answer = decode_response(encoded)
            if isinstance(answer, Response):
                yield answer
