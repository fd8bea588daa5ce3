"""Clients of the consumer, share and streams protocols, written by hand for `tests.harness.fleets`."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat, TopicImage, TopicImages
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from operations.whatif.facts import (
    EpochHeartbeat,
    EpochProcess,
    EpochReactionKind,
    LogMoment,
    SentHeartbeat,
    TimeSpan,
)
from tests.harness.common import Common
from tests.harness.fleets import GROUP, at
from tests.harness.streams_requests import topology_of

_TOPICS: TopicImages = {"jobs": TopicImage(UUID(int=1), 6), "log": TopicImage(UUID(int=2), 6)}
_TOPOLOGY = topology_of("0: jobs +log")


def member(
    protocol: str,
    client: str,
    starts_s: float = 0,
    *,
    run: int = 1,
    ends_s: float | None = None,
    leaves: bool = True,
    pauses_s: Sequence[tuple[float, float]] = (),
) -> EpochProcess:
    """Return a process that runs from one second of the story to another."""
    first = SentHeartbeat(LogMoment(at(starts_s)), f"join-{client}-{run}", _join(protocol, client, run))
    ends = None if ends_s is None else LogMoment(at(ends_s))
    leave = None
    if ends is not None and leaves:
        member_id = first.request.member_id
        request = type(first.request)(**_common(client), member_id=member_id, member_epoch=-1)
        leave = SentHeartbeat(ends, "", request)
    return EpochProcess(
        key=client if run == 1 else f"{client} (run {run})",
        client=client,
        starts=first,
        ends=ends,
        leave=leave,
        pauses=[TimeSpan(at(since), at(to)) for since, to in pauses_s],
        requests={first.request_id: first},
        usual_ms=dict.fromkeys(EpochReactionKind, 20),
        late_ms=5,
    )


def _join(protocol: str, client: str, run: int) -> EpochHeartbeat:
    common: dict[str, Any] = {**_common(client), "member_id": f"{client}-{run}", "member_epoch": 0}
    jobs = {"jobs": _TOPICS["jobs"]}
    if protocol == SHARE:
        return ShareGroupHeartbeat(**common, subscribed_topic_names=["jobs"], topics=jobs)
    common["rebalance_timeout_ms"] = 60_000
    if protocol == STREAMS:
        return StreamsGroupHeartbeat(
            **common,
            topology=_TOPOLOGY,
            process_id=client,
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            topics=_TOPICS,
        )
    assert protocol == CONSUMER
    return ConsumerGroupHeartbeat(**common, subscribed_topic_names=["jobs"], topic_partitions=[], topics=jobs)


def _common(client: str) -> Common:
    return {
        "group_id": GROUP,
        "correlation_id": client,
        "reply_partition": 0,
        "api_version": 1,
        "client_id": client,
    }
