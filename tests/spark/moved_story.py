"""The log of the tests about a state that moves."""

from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from tests.spark.log import T0, Log, Record, heartbeat, leave

GROUPS = ("a", "d", "b", "c", "e")
SILENT, LEAVING = "d", "e"
SESSION_MS = 10_000


class Story:
    """A log in three parts: what is committed, the batch that is cut off, and what follows.

    Group SILENT has one member that never speaks again. The member of LEAVING leaves in the batch that is cut
    off. The other members speak until the end. All but SILENT's commit offsets.
    """

    def __init__(self) -> None:
        log = Log()
        self.members: dict[str, str] = {}
        self.first: list[Record] = log.clock(T0, T0)
        for group_id in GROUPS:
            records, self.members[group_id] = log.stable_member(T0 + 1, group_id, session_ms=SESSION_MS)
            self.first += records
        speaking = [(g, member_id) for g, member_id in self.members.items() if g != SILENT]
        self.first += [log.request(T0 + 2, _commit(g, member_id, 41)) for g, member_id in speaking]
        self.cut_off = log.clock(T0 + 3_000, T0 + 2_000)
        self.cut_off += [log.request(T0 + 3_000, _commit(g, member_id, 42)) for g, member_id in speaking]
        self.cut_off += [log.request(T0 + 3_001, leave(LEAVING, self.members[LEAVING]))]
        alive = [log.request(T0 + 9_000, heartbeat(g, m)) for g, m in speaking if g != LEAVING]
        self.rest = [
            [*log.clock(T0 + 9_000, T0 + 8_000), *alive],
            log.clock(T0 + 12_000, T0 + 11_000),
            log.clock(T0 + 12_001, T0 + 11_001),
        ]


def _commit(group_id: str, member_id: str, offset: int) -> OffsetCommit:
    return OffsetCommit(
        group_id=group_id,
        correlation_id="asked by c",
        reply_partition=1,
        api_version=8,
        client_id="c",
        generation_id=1,
        member_id=member_id,
        topics=[CommittedTopic("orders", [CommittedPartition(0, offset)])],
    )
