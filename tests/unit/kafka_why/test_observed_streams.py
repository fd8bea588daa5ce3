"""History and views of observed streams groups, by the rows of docs/observe.md."""

from collections.abc import Mapping
from typing import Any

import pytest

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH, STREAMS
from kafka_why.observed.group import ACTIVE, task_key
from kafka_why.observed.records import (
    AnyRecord,
    MemberAssigned,
    MemberAssignment,
    MemberSubscribed,
    TargetEpoch,
)
from kafka_why.observed.view import view_of
from tests.harness.observed_epochs import (
    Said,
    group_removed,
    has,
    removed,
    settles,
    streams_epoch,
    streams_member,
    target,
    topology,
)
from tests.harness.observed_log import (
    G,
    Watched,
    at,
    check_history_ends,
    committed,
    created,
    watch,
)


def joins(name: str, epoch: AnyRecord, **others: Any) -> list[AnyRecord]:
    return [MemberSubscribed(name, streams_member(name, **others), STREAMS), epoch]


FIRST = MemberSubscribed("a", streams_member("a", instance="i"), STREAMS)
NOT_READY = at(1_000, FIRST, topology(), streams_epoch(2, -1), *settles(STREAMS, 2, a=()))
BEGUN = (*NOT_READY, *at(3_000, streams_epoch(3, 0), *settles(STREAMS, 3, a=(0, 1))))


EMPTY = at(6_000, *removed("a", STREAMS), streams_epoch(4))
COMMITTED = Said(4_000, G, committed(1, 5, 4_000))
AWAY = MemberAssigned("a", MemberAssignment(LEAVE_GROUP_STATIC_MEMBER_EPOCH, 3, 0, {}, {}), STREAMS)
UNKNOWN = MemberAssigned("a", MemberAssignment(3, 2, 126, {task_key(ACTIVE, "0"): [0, 1]}, {}), STREAMS)
MISSING = "the topics of the topology are missing, or have wrong numbers of partitions"


def changes(what: str, **others: str) -> Any:
    return pytest.param(
        (*BEGUN, *at(5_000, *joins("a", streams_epoch(4), instance="i", **others))),
        [("GroupEpochBumped", "a", "OB23")],
        {-1: {"reason": f"member a changed {what}"}},
        id=what,
    )


@pytest.mark.parametrize(
    ("said", "tail", "fields"),
    [
        pytest.param(
            BEGUN,
            [
                ("GroupCreated", None, "OB20"),
                ("MemberAdded", "a", "OB21"),
                ("TopologyChanged", None, "OB50"),
                ("GroupEpochBumped", "a", "OB23"),
                ("TargetAssignmentComputed", None, "OB24"),
                ("MemberReconciled", "a", "OB25"),
                ("GroupEpochBumped", None, "OB51"),
                ("TargetAssignmentComputed", None, "OB24"),
                ("MemberReconciled", "a", "OB25"),
                ("Stable", None, "OB26"),
            ],
            {
                2: {
                    "to_state": "Empty",
                    "topics": ["orders"],
                    "reason": "the topology of epoch 0: subtopology 0 reads orders",
                },
                **{place: {"to_state": "NotReady"} for place in (3, 4, 5)},
                6: {"to_state": "Assigning"},
                **{place: {"to_state": "Reconciling"} for place in (7, 8)},
            },
            id="not ready until its topics are right",
        ),
        pytest.param(
            (*BEGUN, *at(5_000, streams_epoch(4, -1, digest=0))),
            [("GroupEpochBumped", None, "OB51")],
            {-1: {"to_state": "NotReady", "reason": MISSING}},
            id="topics that are missing",
        ),
        pytest.param(
            (*BEGUN, *at(5_000, streams_epoch(4, standbys="1"))),
            [("GroupEpochBumped", None, "OB52")],
            {-1: {"reason": "num.standby.replicas changed from 0 to 1"}},
            id="other settings",
        ),
        pytest.param(
            (*BEGUN, *at(5_000, *joins("b", streams_epoch(4, -1, standbys="1")))),
            [("MemberAdded", "b", "OB21"), ("GroupEpochBumped", "b", "OB23")],
            {-1: {"reason": f"member b joined; {MISSING}; num.standby.replicas changed from 0 to 1"}},
            id="all reasons of one epoch",
        ),
        pytest.param(
            (*BEGUN, *at(5_000, streams_epoch(4, digest=8))),
            [("GroupEpochBumped", None, "OB27")],
            {},
            id="growth",
        ),
        changes("its rack", rack="r"),
        changes("its endpoint", endpoint="h:1"),
        changes("its rack and its process", process="p2", rack="r"),
        pytest.param(
            (
                *BEGUN,
                *at(
                    5_000,
                    *joins("b", streams_epoch(4)),
                    target("b", 1, kind=STREAMS),
                    TargetEpoch(4, STREAMS),
                ),
                *at(5_100, has("a", 3, 0, state=1, revoking=(1,), standbys=(2,), kind=STREAMS)),
                *at(5_200, has("b", 4, state=2, kind=STREAMS)),
            ),
            [("MemberReconciled", "a", "OB25"), ("MemberReconciled", "b", "OB25")],
            {
                -2: {
                    "revoking": {"active 0": [1]},
                    "assigned": {"active 0": [0], "standby 0": [2]},
                    "reason": "the member has to revoke active 0_1",
                },
                -1: {
                    "awaiting": {"active 0": [1]},
                    "reason": "the member is at epoch 4 and has no task; it waits for active 0_1",
                },
            },
            id="tasks by role and subtopology",
        ),
        pytest.param(
            (*BEGUN, COMMITTED, *at(9_000, *removed("a", STREAMS), streams_epoch(4))),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23"), ("Empty", None, "OB26")],
            {-3: {"reason": "left or expired: the last commit of its partitions was 5.0 s before"}},
            id="the last commit of what its active tasks read",
        ),
        # StreamsGroup: only its topology epoch, rack, tags and process id make an epoch.
        pytest.param(
            (
                *BEGUN,
                *at(5_000, AWAY),
                *at(6_000, *removed("a", STREAMS)),
                *at(6_000, *joins("a2", streams_epoch(4), client="a", instance="i", process="p2")),
            ),
            [
                ("MemberLeftTemporarily", "a", "OB25"),
                ("MemberReplaced", "a2", "OB28"),
                ("GroupEpochBumped", "a2", "OB23"),
            ],
            {-2: {"replaced_member_id": "a"}, -1: {"reason": "member a2 changed its process"}},
            id="a static member in another process",
        ),
        # Its topology is removed last.
        pytest.param(
            (*BEGUN, *EMPTY, *at(6_000, TargetEpoch(4, STREAMS)), *at(7_000, *group_removed(STREAMS))),
            [("GroupDeleted", None, "OB12")],
            {},
            id="a deleted group",
        ),
        # Kafka reads a state byte that it does not know as UNKNOWN.
        pytest.param(
            (*BEGUN, *at(5_000, UNKNOWN)),
            [("Stable", None, "OB26")],
            {-1: {"seq": 10}},
            id="an unknown state",
        ),
    ],
)
def test_records_of_a_streams_group_become_history_entries(
    said: tuple[Said, ...], tail: list[tuple[str, str | None, str]], fields: Mapping[int, Mapping[str, Any]]
) -> None:
    check_history_ends(watch(*said), tail, fields)


def test_classic_group_replacing_an_empty_streams_group_is_a_new_group() -> None:
    """JoinGroup to an empty streams group. The offsets stay."""
    said = (COMMITTED, *EMPTY, *at(7_000, *group_removed(STREAMS)))
    watched = Watched().take((*BEGUN, *said, created(G, 7_000)))
    assert [entry.group_type for entry in watched.history[-2:]] == ["streams", "classic"]
    assert watched.groups[G].offsets["orders"][1].offset == 5
    assert watched.groups[G].epochs is None


def test_view_shows_the_topology_and_member_metadata() -> None:
    joined = at(5_000, *joins("b", streams_epoch(4), endpoint="10.0.0.2:7000"))
    (group,) = Watched().take((*BEGUN, *joined)).groups.values()
    view = view_of(group, {})
    assert (view.protocol_type, view.group_type, view.state) == ("streams", "streams", "Assigning")
    assert view.consumer
    assert view.consumer.streams
    assert (view.consumer.streams.topology_epoch, view.consumer.streams.validated_topology_epoch) == (0, 0)
    assert view.consumer.streams.subtopologies == {"0": ["orders"]}
    assert view.consumer.streams.assignment_configs == {"num.standby.replicas": "0"}
    a, b = (member.consumer for member in view.members)
    assert a is not None
    assert a.assigned == {"active 0": [0, 1]}
    assert b is not None
    assert b.streams
    assert (b.streams.process_id, b.streams.user_endpoint) == ("process-b", "10.0.0.2:7000")
