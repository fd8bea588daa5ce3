"""The differences from Kafka's own coordinator that are kept, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """An accepted difference: where it may occur, and the reason.

    `case`, `step`, `path` (of a value in an answer), `kafkas` and `ours` (the two values) are fnmatch
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
    "Kafka keeps the empty id, deprecated since 2.2 (KIP-289), only for offsets and administration, because "
    "of clients that commit without a group. Such a client lacks its group id by mistake; the error shows "
    "the mistake."
)

KEPT: tuple[Kept, ...] = (
    Kept(
        what='offset and administration requests of the group `""` get INVALID_GROUP_ID; '
        "Kafka accepts that group",
        reason=_OLDEST,
        case="*the empty group id*",
    ),
    Kept(
        what="a first member that lists one protocol twice gets an answer; Kafka never answers it",
        reason="Kafka counts the second mention as a second member's: it finds no protocol that all members "
        "have, and completing the round throws. No client can rely on an answer that never comes.",
        case="a protocol that is listed twice",
    ),
    Kept(
        what="of protocols with equally many votes, the coordinator selects the one that the first member "
        "lists first",
        reason="Kafka selects the first one of a hash map; its protocol leaves the choice open.",
        case="protocols with equally many votes",
    ),
    Kept(
        what="SyncGroup with neither a group id nor a protocol gets INVALID_GROUP_ID; Kafka answers "
        "INCONSISTENT_GROUP_PROTOCOL",
        reason="Both errors are final. No client sends this request, because from version 5 on all clients "
        "name their protocol.",
        case="sync with neither group id nor protocol",
        path="error_code",
    ),
)

_ONE_LIFE = (
    "not reached: no script deletes a topic; `tests/scenarios/offset_topic_ids.txt` plays it, "
    "`tests/e2e/test_gateway.py` on both coordinators"
)
_DAYS = "not reached: the shortest retention is a minute; `tests/scenarios/retention.txt` covers days"
_OUR_OWN = "not reached: a fault of this implementation, to which Kafka has no counterpart"

_NOT_KAFKAS = "not reached: Kafka's classic groups have no counterpart"

NOT_REACHED: Mapping[str, str] = {
    **dict.fromkeys(("Q5", "D6", "D7", "D8", "D9"), _ONE_LIFE),
    "T3": "not reached: a new member's JoinGroup would have to be parked for five minutes",
    **dict.fromkeys(("Z1", "Z2", "Z3", "Z4", "Z5", "Z6", "Z7"), _DAYS),
    **dict.fromkeys(("F1", "F2", "F3", "F4"), _OUR_OWN),
    "F5": "not reached: the coordinator would have to be down; `tests/scenarios/takeover.txt` covers it",
    "TO18": "not reached: the coordinator would have to be down; "
    "`tests/scenarios/transactions_kept.txt` covers it",
    **dict.fromkeys(("M1", "M2", "M3", "M4", "M5"), _NOT_KAFKAS),
    "TO6": "not reached: a gateway would have to stand still for the length of a transaction; "
    "`tests/e2e/test_transactions.py` writes such a request",
    "O12": "not reached: the bound is not Kafka's, where the size of a batch of the log is the bound",
}
"""The rows of docs/rules.md that no script reaches, by row, each with the reason."""
