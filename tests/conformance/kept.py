"""The accepted differences from Kafka's own coordinator, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """An accepted difference: where it may occur, and the reason.

    `case`, `step`, `path` (of a value in an answer), `kafkas` and `ours` (the two values) are fnmatch
    patterns, or several with `|` between them. Without `is_always_shown` a run may lack the difference.
    """

    what: str
    reason: str
    case: str
    step: str = "*"
    path: str = "*"
    kafkas: str = "*"
    ours: str = "*"
    is_always_shown: bool = True


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
    Kept(
        what="a static member that joins again with its own member id gets its epoch and partitions; Kafka "
        "answers UNRELEASED_INSTANCE_ID",
        reason="Such a request is the member's own retry, and the error is final in every client.",
        case="a static member's own retry",
        step="2 *",
    ),
    Kept(
        what="a static member of a streams group that joins again with its own member id gets its epoch and "
        "tasks; Kafka answers UNRELEASED_INSTANCE_ID",
        reason="Such a request is the member's own retry, and the error is final in every client.",
        case="a static streams member's own retry",
        step="2 *",
    ),
    Kept(
        what="members of a streams group get tasks in another order on the way to the same target",
        reason="Which of several equal members gets a free task depends on the order of a hash map of Kafka. "
        "A member that gets back a task it gave up gets it in the answer to its acknowledgement, as in "
        "consumer groups; in Kafka one heartbeat later.",
        case="random streams*",
        path="*_tasks|groups.0.group_state",
        is_always_shown=False,
    ),
    Kept(
        what="the task offsets of the member that creates a streams group are known; Kafka loses them",
        reason="Kafka works on a temporary group then, of which only the records remain.",
        case="task offsets of a streams member",
        step="5 *",
        path="groups.0.members.0.task_*",
    ),
    Kept(
        what="an unknown member's JoinGroup to an empty consumer group changes nothing; Kafka, which refuses "
        "it, too, deletes the group and its offsets",
        reason="A refused request changes nothing. Kafka deletes the group in its memory alone, without a "
        "record, and in some runs the group is still there.",
        case="an unknown member joins an empty consumer group",
        is_always_shown=False,
    ),
    Kept(
        what="a pattern is resolved by the request that brings it, so its topics are in the first answer; "
        "Kafka resolves it later, so its epoch is one higher, or one lower if the pattern changes before "
        "that",
        reason="Kafka takes all partitions of a member that changes its pattern, until the new one is "
        "resolved, which takes up to 10 s.",
        case="a pattern*|from a pattern*|*the same pattern",
        path="member_epoch|assignment*|groups.0.*epoch",
    ),
    Kept(
        what="a classic member of a consumer group gets a member id of the form it has in a classic group; "
        "in Kafka's it is a UUID alone",
        reason="Member ids of this coordinator follow from the request's place in the log, in one form.",
        case="*",
        path="member_id's form",
        kafkas="<uuid>",
        ours="*-<uuid>",
    ),
    Kept(
        what="OffsetFetch with a member epoch and no member id gets UNKNOWN_MEMBER_ID; Kafka answers "
        "UNKNOWN_SERVER_ERROR",
        reason="Kafka looks the missing id up in a map that throws on null.",
        case="a fetch by epoch *",
        step="* id=null epoch=2",
        path="groups.0.error_code",
    ),
    Kept(
        what="a member without topics gets no target; if it joins while a target is due, Kafka assigns it "
        "partitions, which nobody reads then",
        reason="Kafka still assumes that all subscriptions are equal, because a member without topics does "
        "not make it compare them again.",
        case="a member without topics joins before a target is computed",
    ),
    Kept(
        what="if all members of a consumer group are classic, their heartbeats compute a due target; in "
        "Kafka only a JoinGroup does",
        reason="No member has a reason to send a JoinGroup, so nobody would read the partitions of a member "
        "that left.",
        case="a consumer group of classic members where the policy forbids conversions",
    ),
    Kept(
        what="the first partitions of a share group are assigned by the next heartbeat; in Kafka they wait "
        "for the end of the assignment interval",
        reason="Until then nobody has these partitions. `coordinator.share.assign.at.once=false` has Kafka's "
        "order.",
        case="the first partitions of a share group",
        step="5 *|6 *",
    ),
    Kept(
        what="a member of a share group that waits for its first partitions has a shorter heartbeat interval",
        reason="Only a heartbeat brings them. In Kafka they come a whole heartbeat interval (5 s) late. "
        "`coordinator.share.assign.at.once=false` has Kafka's interval.",
        case="*",
        path="heartbeat_interval_ms",
        kafkas="5000|7000",
        ours="1000|[1-9]??",
    ),
    Kept(
        what="AlterShareGroupOffsets raises the group epoch; Kafka keeps it",
        reason="KIP-932 says so. Without a new epoch, the share coordinator cannot tell a new request from a "
        "repeated one.",
        case="alter the offsets of *",
        path="*epoch",
    ),
    Kept(
        what="AlterShareGroupOffsets of a partition that does not exist changes nothing; in Kafka it "
        "creates a group, and members that join later read the whole topic from offset 0",
        reason="A refused request changes nothing. In Kafka the topic stays initializing with no partitions.",
        case="a partition that is not there makes no share group|an altering that was refused leaves nothing "
        "behind",
        path="groups.0.*",
    ),
    Kept(
        what="AlterShareGroupOffsets does not return the id of a topic that the client may not read",
        reason="Kafka returns it, and so reveals that the topic exists.",
        case="ACLs of changes of the offsets of a share group",
        path="responses.*.topic_id",
    ),
)

_EMPTY = "an empty share group has no assignment interval"

KEPT_OF: Mapping[str, tuple[Kept, ...]] = {
    "4.3": (
        Kept(
            what="records that were written to new partitions of a topic before a share group had them are "
            "read; in Kafka 4.3 `share.auto.offset.reset` decides",
            reason="Kafka 4.4 does the same (KAFKA-20742).",
            case="*",
            step="* offsets*",
            path="*.start_offset|*.lag",
            kafkas="-1",
            ours="0",
        ),
        Kept(
            what="the target of an Empty share group is at the group epoch; in Kafka 4.3 it is behind, and "
            "the next member may wait for the assignment interval",
            reason="Kafka 4.4 does the same (KAFKA-20442).",
            case="*",
            path="groups.0.assignment_epoch",
        ),
        Kept(
            what="after that, the epochs of the members that wait",
            reason="Kafka 4.4 does the same (KAFKA-20442).",
            case=_EMPTY,
            path="*epoch",
        ),
    )
}
"""Those from an older version of Kafka, by the version."""

_ONE_LIFE = (
    "not reached: no script deletes a topic; `tests/scenarios/offset_topic_ids.txt` plays it, "
    "`tests/slow/test_deleted_topics.py` with real clients"
)
_DAYS = "not reached: the shortest retention is a minute; `tests/scenarios/retention.txt` covers days"
_OUR_OWN = "not reached: a fault of this implementation, to which Kafka has no counterpart"

_WATCHED = (
    "not reached: no script changes a topic or breaks the gateway's link to the brokers; scenarios do, and "
    "`tests/e2e` with real topics"
)

_SHARE_COORDINATOR = (
    "not reached: the cluster's share coordinator would have to fail; scenarios and `tests/slow` have it fail"
)

_FAILS_AT_SHARES = ("SP16", "SI10", "SI14", "SI11", "SP12", "SP15", "SD15", "SP9", "SO18")

_NOT_KAFKAS = "not reached: Kafka's classic groups have no counterpart"

_LARGE = "not reached: scripts have no request of 9 MB; `tests/e2e/test_gateway.py` sends one to both"

# Times, settings and repairs of streams groups, which scripts beside Kafka do not play yet.
_PLAYED_AGAINST_THE_CORE = (
    *("KSA2", "KSA3", "KSA4", "KSA5", "KSA6", "KSB3", "KSB6", "KSB9", "KSB10", "KSB14", "KSF7", "KSF8"),
    *("KSF14", "KSF15", "KSF16", "KSG1", "KSG5", "KSH1", "KSH19", "KSH48", "KSH54", "KSH56", "KSM1", "KSM2"),
    *("KSO3", "KSO4", "KSO12", "KSO17", "KSQ4", "KSQ14", "KSR0", "KSR12", "KSU3", "KSU5", "KSV4"),
)

NOT_REACHED: Mapping[str, str] = {
    **dict.fromkeys(_PLAYED_AGAINST_THE_CORE, "not reached: `tests/scenarios/streams_*.txt` play it"),
    **dict.fromkeys(("Q5", "D6", "D7", "D8", "D9"), _ONE_LIFE),
    "T3": "not reached: a new member's JoinGroup would have to be parked for five minutes",
    **dict.fromkeys(("Z1", "Z2", "Z3", "Z4", "Z5", "Z6", "Z7"), _DAYS),
    **dict.fromkeys(("F1", "F2", "F3", "F4"), _OUR_OWN),
    "F5": "not reached: the coordinator would have to be down; `tests/scenarios/takeover.txt` covers it",
    "TO18": "not reached: the coordinator would have to be down; "
    "`tests/scenarios/transactions_kept.txt` covers it",
    **dict.fromkeys(("M1", "M2", "M3", "M4", "M5"), _NOT_KAFKAS),
    "TO6": "not reached: a gateway would have to stand still for the length of a transaction; "
    "`tests/slow/test_transaction_timelines.py` writes such a request",
    **dict.fromkeys(("MI7", "MI8", "MI9", "MI10", "MI11", "MI14", "MI15"), _WATCHED),
    **dict.fromkeys(("RX4", "RX6", "RG4e", "RG5d", "RG6", "RG7"), _WATCHED),
    **dict.fromkeys(("RA1", "RA2", "RA3", "RA4", "RA5"), _WATCHED),
    "PO3": "not reached: no server has this policy; `tests/scenarios/consumer_policies.txt` plays it",
    "HB1": "not reached: on both servers the consumer protocol is on",
    "HB19": "not reached: Kafka has no groups of RocketMQ",
    "TA31": "not reached: `group.max.partitions` is a setting of this project",
    "TA32": "not reached: `group.max.partitions` is a setting of this project",
    "CV30": "not reached: no classic member changes its topics within an assignment interval",
    "OF27": "not reached: the shortest retention is a minute; `tests/scenarios/consumer_offsets.txt` covers "
    "days",
    "SD11": "not reached: Kafka has no groups of RocketMQ",
    **dict.fromkeys(_FAILS_AT_SHARES, _SHARE_COORDINATOR),
    "SP17": "not reached: a member would have to join within the moment of a deletion",
    "SO18a": "not reached: a request would have to come within the moment of a deletion",
    "SK6": "not reached: a request would have to come within the moment of another task",
    "SO9b": "not reached: the gateway would have to lose the brokers",
    "SO9d": "not reached: the bound is this project's",
    "DN8": "not reached: Kafka's answer has the generation 0, with which a client cannot go on",
    "UP8": "not reached: Kafka answers UNKNOWN_SERVER_ERROR after it has refused the members' JoinGroups",
    "O12": "not reached: the bound is not Kafka's, where the size of a batch of the log is the bound",
    **dict.fromkeys(("J9", "S10", "S11"), _LARGE),
}
"""The rows of docs/rules.md that no script reaches, by row, each with the reason."""
