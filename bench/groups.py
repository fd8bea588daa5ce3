"""Groups for measurements: one member each, Stable."""

from bench.asker import Asker
from state.kafka.requests import Heartbeat, JoinGroup, Protocol, SyncGroup

SESSION_TIMEOUT_MS = 600_000


def join_request(asker: Asker, group_id: str, rebalance_timeout_ms: int = 60_000) -> JoinGroup:
    return JoinGroup(
        group_id=group_id,
        correlation_id=asker.next_id(),
        reply_partition=asker.REPLY_PARTITION,
        api_version=3,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type="consumer",
        protocols=[Protocol("range")],
    )


def heartbeat_request(asker: Asker, group_id: str, member_id: str, generation_id: int) -> Heartbeat:
    return Heartbeat(
        group_id=group_id,
        correlation_id=asker.next_id(),
        reply_partition=asker.REPLY_PARTITION,
        api_version=3,
        generation_id=generation_id,
        member_id=member_id,
    )


def form_groups(asker: Asker, group_ids: list[str]) -> dict[str, tuple[str, int]]:
    """Bring every group to Stable. Return (member id, generation) by group id."""
    joins = {(request := join_request(asker, group_id)).correlation_id: request for group_id in group_ids}
    for request in joins.values():
        asker.send_nowait(request)
    joined = {joins[cid].group_id: answer for cid, (answer, _) in asker.wait(set(joins)).items()}
    syncs = [
        SyncGroup(
            group_id=group_id,
            correlation_id=asker.next_id(),
            reply_partition=asker.REPLY_PARTITION,
            api_version=3,
            generation_id=answer.generation_id,
            member_id=answer.member_id,
        )
        for group_id, answer in joined.items()
    ]
    for sync in syncs:
        asker.send_nowait(sync)
    asker.wait({sync.correlation_id for sync in syncs})
    return {group_id: (answer.member_id, answer.generation_id) for group_id, answer in joined.items()}
