"""What follows from the records of streams groups, by the rows of docs/observe.md."""

from typing import Any

import pytest
from msgspec.structs import replace

from state.kafka.consumer_group import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from state.kafka.history import EntryType, HistoryEntry
from state.kafka.observed.group import STREAMS
from state.kafka.observed.records import (
    AnyRecord,
    MemberAssigned,
    MemberAssignment,
    MemberSubscribed,
    TargetEpoch,
)
from state.kafka.observed.view import view_of
from tests.harness.observed_epochs import (
    Said,
    group_removed,
    has,
    removed,
    streams_epoch,
    streams_member,
    target,
    topology,
)
from tests.harness.observed_log import (
    REAL_OF_OTHERS,
    G,
    Watched,
    committed,
    created,
    real_records,
    told,
    watch,
)


def at(at_ms: int, *records: AnyRecord) -> tuple[Said, ...]:
    """Records of one request."""
    return tuple(Said(at_ms, G, record) for record in records)


def joins(name: str, epoch: AnyRecord, **others: Any) -> list[AnyRecord]:
    return [MemberSubscribed(name, streams_member(name, **others), STREAMS), epoch]


def settles(epoch: int, **tasks: tuple[int, ...]) -> list[AnyRecord]:
    """The target assignment of an epoch, and members that have it."""
    return [
        *(target(name, *numbers, kind=STREAMS) for name, numbers in tasks.items()),
        TargetEpoch(epoch, 1, STREAMS),
        *(has(name, epoch, *numbers, kind=STREAMS) for name, numbers in tasks.items()),
    ]


FIRST = MemberSubscribed("a", streams_member("a", instance="i"), STREAMS)
NOT_READY = at(1_000, FIRST, topology(), streams_epoch(2, -1), *settles(2, a=()))
BEGUN = (*NOT_READY, *at(3_000, streams_epoch(3, 0), *settles(3, a=(0, 1))))


def after(*said: Said) -> list[HistoryEntry]:
    """The entries after those of the beginning."""
    return watch(*BEGUN, *said)[len(watch(*BEGUN)) :]


def test_a_group_is_not_ready_until_its_topics_are_right() -> None:
    history = watch(*BEGUN)
    assert told(history) == [
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
    ]
    assert [entry.to_state for entry in history] == (
        ["Empty"] * 3 + ["NotReady"] * 3 + ["Assigning", "Reconciling", "Reconciling", "Stable"]
    )
    assert history[2].topics == ["orders"]
    assert history[2].reason == "the topology of epoch 0: subtopology 0 reads orders"


def test_topics_that_are_missing_make_an_epoch_without_tasks() -> None:
    bumped, *_ = after(*at(5_000, streams_epoch(4, -1, digest=0), *settles(4, a=())))
    assert (bumped.rule, bumped.to_state) == ("OB51", "NotReady")
    assert bumped.reason == "the topics of the topology are missing, or have wrong numbers of partitions"


def test_other_settings_of_the_assignment_make_an_epoch() -> None:
    (bumped,) = after(*at(5_000, streams_epoch(4, standbys="1")))
    assert (bumped.rule, bumped.reason) == ("OB52", "num.standby.replicas changed from 0 to 1")


def test_all_reasons_of_one_epoch_are_told() -> None:
    both = at(5_000, *joins("b", streams_epoch(4, -1, standbys="1")))
    assert after(*both)[-1].reason == (
        "member b joined; the topics of the topology are missing, or have wrong numbers of partitions; "
        "num.standby.replicas changed from 0 to 1"
    )


def test_topics_that_grew_are_inferred_from_their_hash() -> None:
    (bumped,) = after(*at(5_000, streams_epoch(4, digest=8)))
    assert bumped.rule == "OB27"


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ({"rack": "r"}, "its rack"),
        ({"endpoint": "h:1"}, "its endpoint"),
        ({"process": "p2", "rack": "r"}, "its rack and its process"),
    ],
)
def test_what_a_member_changed_is_named(others: dict[str, str], what: str) -> None:
    (bumped,) = after(*at(5_000, *joins("a", streams_epoch(4), instance="i", **others)))
    assert (bumped.rule, bumped.member_id, bumped.reason) == ("OB23", "a", f"member a changed {what}")


def test_tasks_are_told_by_role_and_subtopology() -> None:
    revoking = has("a", 3, 0, state=1, revoking=(1,), standbys=(2,), kind=STREAMS)
    waiting = has("b", 4, state=2, kind=STREAMS)
    said = at(5_000, *joins("b", streams_epoch(4)), target("b", 1, kind=STREAMS), TargetEpoch(4, 1, STREAMS))
    *_, given, awaited = after(*said, *at(5_100, revoking), *at(5_200, waiting))
    assert given.revoking == {"active 0": [1]}
    assert given.assigned == {"active 0": [0], "standby 0": [2]}
    assert given.reason == "the member has to revoke active 0_1"
    assert awaited.awaiting == {"active 0": [1]}
    assert awaited.reason == "the member is at epoch 4 and has no task; it waits for active 0_1"


def test_the_last_commit_of_a_member_that_went_is_that_of_what_its_active_tasks_read() -> None:
    said = (Said(4_000, G, committed(1, 5, 4_000)), *at(9_000, *removed("a", STREAMS), streams_epoch(4)))
    gone = next(entry for entry in after(*said) if entry.type is EntryType.MEMBER_REMOVED)
    assert gone.reason == "member a left or expired: the last commit of its partitions was 5.0 s before"


def test_a_static_member_that_comes_back_in_another_process_makes_an_epoch() -> None:
    """StreamsGroup: only its topology epoch, rack, tags and process id do."""
    away = MemberAssigned("a", MemberAssignment(LEAVE_GROUP_STATIC_MEMBER_EPOCH, 3, 0, {}, {}), STREAMS)
    back = [*removed("a", STREAMS), *joins("a2", streams_epoch(4), client="a", instance="i", process="p2")]
    left, replaced, bumped = after(*at(5_000, away), *at(6_000, *back))
    assert left.type is EntryType.MEMBER_LEFT_TEMPORARILY
    assert (replaced.rule, replaced.replaced_member_id) == ("OB28", "a")
    assert (bumped.member_id, bumped.reason) == ("a2", "member a2 changed its process")


def test_a_deleted_group_leaves_nothing_although_its_topology_is_removed_last() -> None:
    empty = at(6_000, *removed("a", STREAMS), streams_epoch(4), TargetEpoch(4, None, STREAMS))
    ended = Watched().take((*BEGUN, *empty, *at(7_000, *group_removed(STREAMS))))
    assert told(ended.history)[-1] == ("GroupDeleted", None, "OB12")
    assert ended.groups == {}


def test_a_classic_group_that_takes_its_place_is_another_one() -> None:
    """JoinGroup to an empty streams group. The offsets stay."""
    empty = at(6_000, *removed("a", STREAMS), streams_epoch(4))
    said = (Said(4_000, G, committed(1, 5, 4_000)), *empty, *at(7_000, *group_removed(STREAMS)))
    watched = Watched().take((*BEGUN, *said, created(G, 7_000)))
    assert [entry.group_type for entry in watched.history[-2:]] == ["streams", "classic"]
    assert watched.groups[G].offsets["orders"][1].offset == 5
    assert watched.groups[G].epochs is None


def test_the_view_has_the_topology_and_what_members_sent() -> None:
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


def test_an_unknown_state_of_a_member_is_not_told() -> None:
    """Kafka reads a state byte that it does not know as UNKNOWN."""
    step = has("a", 3, 0, 1, kind=STREAMS)
    assert step.assignment is not None
    assert after(*at(5_000, replace(step, assignment=replace(step.assignment, state=126)))) == []


def test_a_real_broker_s_streams_group_tells_what_happened() -> None:
    history = Watched().take(real_records(REAL_OF_OTHERS)).of("counts")
    clients = {e.member_id: e.client_id.split("-")[0] for e in history if e.member_id and e.client_id}
    seen = [
        (entry.type.value, clients.get(entry.member_id or ""))
        for entry in history
        if entry.rule in ("OB20", "OB21", "OB22", "OB50", "OB51")
    ]
    assert seen == [
        ("GroupCreated", None),
        ("MemberAdded", "t1"),
        ("TopologyChanged", None),
        ("GroupEpochBumped", None),
        ("MemberAdded", "t2"),
        ("MemberRemoved", "t1"),
        ("MemberRemoved", "t2"),
    ]
    held = {
        (clients[e.member_id or ""], task, n)
        for e in history
        if e.type is EntryType.MEMBER_RECONCILED and e.generation == 4 and e.member_state == "Stable"
        for task, numbers in (e.assigned or {}).items()
        for n in numbers
    }
    assert held == {
        *(("t1", "active 0", n) for n in (0, 1)),
        *(("t1", "standby 0", n) for n in (2, 3)),
        *(("t2", "active 0", n) for n in (2, 3)),
        *(("t2", "standby 0", n) for n in (0, 1)),
    }
