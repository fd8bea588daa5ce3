"""The differences from Kafka's own coordinator that are kept, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """Where a difference may be, and why. `case`, `step`, `path` (of a value in an answer) and the values are
    patterns.
    """

    what: str
    reason: str
    case: str
    step: str = "*"
    path: str = "*"
    kafkas: str = "*"
    ours: str = "*"


_OLDEST = (
    "Kafka keeps the empty id for offsets and administration alone, deprecated since 2.2 (KIP-289), for "
    "clients that commit without a group. Such a client forgot to name its group; refused, it learns so."
)

KEPT: tuple[Kept, ...] = (
    Kept(
        what='offsets and administration of the group `""`: INVALID_GROUP_ID, where Kafka knows such a group',
        reason=_OLDEST,
        case="*the empty group id*",
    ),
    Kept(
        what="a first member that lists one protocol twice is answered, where Kafka never answers",
        reason="In Kafka the second mention counts as a second member's: no protocol is found that all have, "
        "and completing the round throws. Nobody can rely on an answer that does not come.",
        case="a protocol that is listed twice",
    ),
    Kept(
        what="of protocols with equally many votes, the one that the first member lists first is selected",
        reason="Kafka takes the one that comes first in a hash map, which its protocol leaves open.",
        case="protocols with equally many votes",
    ),
    Kept(
        what="SyncGroup with neither a group id nor a protocol: INVALID_GROUP_ID before "
        "INCONSISTENT_GROUP_PROTOCOL",
        reason="Both refuse it for good; no client sends it, for all name their protocol from version 5 on.",
        case="sync with neither group id nor protocol",
        path="error_code",
    ),
)

_ONE_LIFE = (
    "not reached: no script deletes a topic; `tests/scenarios/offset_topic_ids.txt` plays it, "
    "`tests/e2e/test_gateway.py` on both coordinators"
)
_DAYS = "not reached: the least retention is a minute; `tests/scenarios/retention.txt` plays days"
_OUR_OWN = "not reached: a fault of our own, which Kafka has no answer to"

_NOT_KAFKAS = "not reached: Kafka's classic groups have no such thing"

NOT_REACHED: Mapping[str, str] = {
    **dict.fromkeys(("Q5", "D6", "D7", "D8", "D9"), _ONE_LIFE),
    "T3": "not reached: a new member's JoinGroup has to be parked for five minutes",
    **dict.fromkeys(("Z1", "Z2", "Z3", "Z4", "Z5", "Z6"), _DAYS),
    **dict.fromkeys(("F1", "F2", "F3", "F4"), _OUR_OWN),
    "F5": "not reached: no coordinator is to be down; `tests/scenarios/takeover.txt` plays it",
    **dict.fromkeys(("M1", "M2", "M3", "M4", "M5"), _NOT_KAFKAS),
    "O12": "the bound is not Kafka's: there it is the size of a batch of the log",
}
"""Rows of docs/rules.md that no script reaches, each with the reason."""
