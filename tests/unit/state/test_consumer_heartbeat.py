"""ConsumerGroupHeartbeat: what scenarios do not show. An error changes nothing and says what is wrong, a
keep-alive leaves no trace, and the history tells each change of the group's state.
"""

from itertools import pairwise

import pytest
from msgspec import msgpack, structs

from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.errors import ErrorCode
from state.inputs import Received
from state.kafka.any_group import KafkaGroup
from state.kafka.classic_group import GroupState
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.effects import Effects
from state.kafka.history import EntryType, HistoryEntry
from state.kafka.requests import ConsumerGroupDescribe, ConsumerGroupHeartbeat
from state.kafka.responses import ConsumerGroupHeartbeatResponse, JoinGroupResponse
from state.messages import ErrorResponse
from state.rocketmq.group import Group as RocketMqGroup
from tests.harness.scenario_player import ScenarioPlayer


class Recorded(ScenarioPlayer):
    """A world that keeps the effects of its steps."""

    def __init__(self, *commands: str) -> None:
        super().__init__()
        self.effects: list[Effects] = []
        self.play(*commands)

    def play(self, *commands: str) -> list[Effects]:
        """Run the commands, and return the effects of their steps."""
        self.effects = []
        for command in commands:
            self.run(command)
        return self.effects

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = super()._step(group, group_id, event, now_ms, config)
        assert isinstance(effects, Effects)
        self.effects.append(effects)
        return effects

    @property
    def consumer_group(self) -> ConsumerGroup:
        group = self.any_group()
        assert isinstance(group, ConsumerGroup)
        return group


# A static member, a dynamic one, and partitions for both.
TWO_MEMBERS = (
    "topics foo=4",
    "A(ia) e0",
    "at 2s",
    "B e0",
    "at 3s",
    "A e2",
    "A e2 owned[0,1]",
    "B e3",
)
STABLE = (*TWO_MEMBERS, "at 4s")
REVOKING = (*TWO_MEMBERS[:6], "at 4s")
AWAY = (*TWO_MEMBERS, "A(ia) -2", "at 4s")
CLASSIC = ("topics foo=4", "join X topics=foo api=3", "at 3s", "sync X assign=@X:foo-0", "at 4s")


def content(group: KafkaGroup | None) -> bytes:
    """The group without its clock and the number of its history entries."""
    return b"" if group is None else msgpack.encode(structs.replace(group, seq=0, clock_ms=0))


def history(effects: list[Effects]) -> list[HistoryEntry]:
    return [entry for one in effects for entry in one.history]


def types(effects: list[Effects]) -> list[EntryType]:
    return [entry.type for entry in history(effects)]


FULL = ("GROUP_MAX_SIZE_REACHED", "TA31")
REFUSALS = [
    (STABLE, "A e1", "FENCED_MEMBER_EPOCH", "HB28"),
    (STABLE, "A e2", "FENCED_MEMBER_EPOCH", "HB28"),
    (STABLE, "A e2 full owned[0-2]", "FENCED_MEMBER_EPOCH", "HB28"),
    (STABLE, "A e4", "FENCED_MEMBER_EPOCH", "HB25"),
    (STABLE, "Z e3", "UNKNOWN_MEMBER_ID", "HB24"),
    (STABLE, "Z(ia) e0", "UNRELEASED_INSTANCE_ID", "HB31"),
    (STABLE, "Z(ia) e3", "FENCED_INSTANCE_ID", "HB34"),
    (STABLE, "A(iz) e3", "UNKNOWN_MEMBER_ID", "HB33"),
    (STABLE, "Z -1", "UNKNOWN_MEMBER_ID", "HB37"),
    (STABLE, "A(iz) -2", "UNKNOWN_MEMBER_ID", "HB39"),
    (STABLE, "B(ia) -1", "FENCED_INSTANCE_ID", "HB40"),
    (STABLE, "A e0 assignor=nobody", "UNSUPPORTED_ASSIGNOR", "HB13"),
    (STABLE, "A e-3", "INVALID_REQUEST", "HB12"),
    (STABLE, "B e3 full owned[2,3] names[foo] regex=foo(", "INVALID_REGULAR_EXPRESSION", "RG4c"),
    (STABLE, "Z e0 regex=foo(", "INVALID_REGULAR_EXPRESSION", "RG4c"),
    (REVOKING, "A e1", "FENCED_MEMBER_EPOCH", "HB28"),
    (REVOKING, "B e3 full owned[] names[] regex=foo(", "INVALID_REGULAR_EXPRESSION", "RG4c"),
    (AWAY, "A e3", "FENCED_MEMBER_EPOCH", "HB25"),
    (AWAY, "Z(ia) e0 regex=foo(", "INVALID_REGULAR_EXPRESSION", "RG4c"),
    (("config group.consumer.max.size=2", *STABLE), "Z e0", "GROUP_MAX_SIZE_REACHED", "HB20"),
    (("config group.consumer.max.size=2", *STABLE), "Z e3", "GROUP_MAX_SIZE_REACHED", "HB20"),
    (("config group.max.partitions=4", *STABLE, "topics bar=1"), "Z e0", *FULL),
    (("config group.max.partitions=4", *STABLE, "topics bar=1"), "Z e0 regex=b.*", *FULL),
    # What a request leaves out stays: B goes on with foo.
    (("config group.max.partitions=4", *STABLE, "topics bar=1"), "B e3 names=none regex=b.*", *FULL),
    (("topics foo=1",), "A e0 regex=foo(", "INVALID_REGULAR_EXPRESSION", "RG4c"),
    (("topics foo=1",), "A e1", "GROUP_ID_NOT_FOUND", "HB15"),
    (("topics foo=1",), "A -1", "GROUP_ID_NOT_FOUND", "HB36"),
    (CLASSIC, "A e1", "GROUP_ID_NOT_FOUND", "HB18"),
    (CLASSIC, "A -1", "GROUP_ID_NOT_FOUND", "HB36"),
    (CLASSIC, "A e0 regex=foo(", "INVALID_REGULAR_EXPRESSION", "RG4c"),
    (("config group.consumer.max.size=1", *CLASSIC), "A e0", "GROUP_MAX_SIZE_REACHED", "HB20"),
]


@pytest.mark.parametrize(("before", "command", "error", "row"), REFUSALS)
def test_an_error_changes_nothing_and_says_what_is_wrong(
    before: tuple[str, ...], command: str, error: str, row: str
) -> None:
    world = Recorded(*before)
    was = content(world.any_group())
    (effects,) = world.play(command)
    (answer,) = [reply.response for reply in effects.replies]
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert (answer.error_code.name, answer.rule) == (error, row)
    assert answer.error_message is not None
    assert len(answer.error_message.split()) > 2
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == (None, 0, 0)
    assert answer.assignment is None
    assert content(world.any_group()) == was
    assert effects.earliest_armed_ms is None
    assert set(types([effects])) <= {EntryType.MEMBER_FENCED, EntryType.JOIN_REFUSED}


def test_a_group_that_was_restored_goes_on() -> None:
    """A refused pattern takes the whole upgrade back: the parked JoinGroup waits for its own rebalance."""
    world = Recorded(*CLASSIC, "join Y topics=foo api=3")
    group = world.group()
    assert group is not None
    assert group.state is GroupState.PREPARING_REBALANCE
    (refused,) = [reply.response for one in world.play("A e0 regex=foo(") for reply in one.replies]
    assert refused.rule == "RG4c"
    answers = [reply.response for one in world.play("join X id=@X") for reply in one.replies]
    assert [type(answer) for answer in answers] == [JoinGroupResponse] * 2
    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}


def test_a_keep_alive_leaves_no_trace() -> None:
    """Its one effect is the session deadline."""
    world = Recorded(*STABLE)
    member = world.consumer_group.members["A"]
    was, session_ms = content(world.any_group()), member.session_deadline_ms
    assert session_ms is not None
    (effects,) = world.play("at 5s", "A e3")
    assert not effects.history
    assert member.session_deadline_ms == 5_000 + 45_000
    member.session_deadline_ms = session_ms
    assert content(world.any_group()) == was


def test_the_history_tells_each_change_of_the_state() -> None:
    """Each entry begins in the state in which the one before it ended, and a rebalance has its time."""
    world = Recorded()
    effects = world.play(*STABLE, "A(ia) -2", "at 5s", "A2(ia) e0", "A2 -1", "at 6s", "B e3", "B -1")
    entries = history(effects)
    assert all(one.to_state == next_one.from_state for one, next_one in pairwise(entries))
    settled = [(e.type, e.at_ms, e.took_ms) for e in entries if e.type in (EntryType.STABLE, EntryType.EMPTY)]
    assert settled == [
        (EntryType.STABLE, 0, 0),
        (EntryType.STABLE, 3_000, 1_000),
        (EntryType.STABLE, 5_000, None),  # a static member came back: there was no rebalance
        (EntryType.STABLE, 6_000, 1_000),
        (EntryType.EMPTY, 6_000, None),
    ]
    assert world.consumer_group.state_timestamp_ms == 6_000


def test_a_bump_says_which_member_changed_what() -> None:
    world = Recorded(*STABLE, "topics bar=1")
    effects = world.play(
        "B e3 names[bar]",
        "B e3 names[bar,foo] regex=f.*",
        "B e3 names[] regex=",
        "at 60s",
    )
    reasons = [e.reason for e in history(effects) if e.type is EntryType.GROUP_EPOCH_BUMPED]
    assert reasons == [
        "member B subscribes to bar and no longer to foo",
        "member B subscribes to foo and subscribes to the pattern 'f.*'",
        "member B no longer subscribes to bar, foo and gives up the pattern 'f.*'",
        "member A was removed: no heartbeat within the session timeout of 45000 ms",
        "member B was removed: no heartbeat within the session timeout of 45000 ms",
    ]


@pytest.mark.parametrize(
    ("before", "due", "reason"),
    [
        (STABLE, "at 49s", "no heartbeat within the session timeout of 45000 ms"),
        (AWAY, "at 49s", "left for a while and did not come back within the session timeout of 45000 ms"),
        (
            (*REVOKING, "at 40s", "A e2", "B e3"),
            "at 63s",
            "did not revoke its partitions within its rebalance timeout of 60000 ms",
        ),
        (STABLE, "A -1", "left the group"),
    ],
)
def test_a_removal_says_why(before: tuple[str, ...], due: str, reason: str) -> None:
    world = Recorded(*before)
    removed = [e for e in history(world.play(due)) if e.type is EntryType.MEMBER_REMOVED]
    assert (removed[0].member_id, removed[0].reason) == ("A", reason)


def test_the_last_members_removal_makes_room_for_a_target_at_once() -> None:
    """Decision K5: a member that joins within the assignment interval gets its partitions at once."""
    world = Recorded("topics foo=2", "at 1s", "A e0", "A -1")
    group = world.consumer_group
    assert (group.assignment_epoch, group.assignment_timestamp_ms) == (group.group_epoch, 0) == (3, 0)
    world.run("B e0 => e4 [0,1]")


def test_a_static_member_takes_the_place_of_another_under_a_known_id() -> None:
    """Row HB30: one id is one member, so what the member of that id had is assigned anew."""
    world = Recorded(*AWAY)
    (effects,) = world.play("B(ia) e0 => e4 [0-3]")
    reasons = [e.reason for e in effects.history if e.type is EntryType.GROUP_EPOCH_BUMPED]
    assert reasons == ["member B gave up its own place for that of instance ia"]
    group = world.consumer_group
    assert list(group.members) == ["B"]
    assert group.static_members == {"ia": "B"}


def test_a_static_member_that_comes_back_gives_up_its_topics_for_others() -> None:
    """Row TA31: the topics of the member whose place it takes do not count."""
    world = ScenarioPlayer()
    for command in (
        "config group.max.partitions=4",
        "topics foo=3 bar=1 baz=2",
        "A(ia) e0 names[foo,bar] => e2 [bar 0; foo 0-2]",
        "A(ia) -2",
        "B(ia) e0 names[bar,baz] => e3 [bar 0; baz 0,1]",
    ):
        world.run(command)


def test_a_member_changes_its_instance_id() -> None:
    """Row HB29: the former instance id is nobody's."""
    world = Recorded(*STABLE)
    world.run("A(ib) e0 => e3 [0,1]")
    assert world.consumer_group.static_members == {"ib": "A"}


def test_an_empty_classic_group_begins_a_new_life_as_a_consumer_group() -> None:
    """Rows HB17, FT6: epochs begin anew, so the incarnation is another one. Offsets and settings stay."""
    world = Recorded(*CLASSIC, "commit X offsets=foo-0=5", "leave X")
    old = world.group()
    assert old is not None
    incarnation, generation = old.incarnation, old.generation
    effects = world.play("A e0")
    group = world.consumer_group
    assert generation == 2
    assert (group.group_epoch, list(group.members)) == (2, ["A"])
    assert group.incarnation != incarnation
    assert group.offsets["foo"][0].offset == 5
    assert [e.seq for e in history(effects)] == list(range(1, group.seq + 1))
    assert types(effects)[0] is EntryType.GROUP_CREATED


def test_a_coordinators_member_id_is_a_function_of_the_request() -> None:
    """Rows HB21, FT5."""
    ids = []
    for _ in range(2):
        world = Recorded("topics foo=1", "A e0 api=0 id=")
        ids.append(list(world.consumer_group.members))
    assert ids[0] == ids[1]
    assert ids[0] != [""]


def given_heartbeat(**fields: object) -> ConsumerGroupHeartbeat:
    given = {"group_id": "g", "correlation_id": "c", "reply_partition": 0, "api_version": 1, **fields}
    return ConsumerGroupHeartbeat(**given)  # type: ignore[arg-type]


DESCRIBE = ConsumerGroupDescribe(group_id="g", correlation_id="c", reply_partition=0, api_version=1)


@pytest.mark.parametrize(
    ("request_", "error", "row"),
    [
        (given_heartbeat(member_id="A", member_epoch=1), ErrorCode.GROUP_ID_NOT_FOUND, "HB19"),
        (given_heartbeat(member_id="A", member_epoch=-1), ErrorCode.GROUP_ID_NOT_FOUND, "HB19"),
        (given_heartbeat(member_id="", member_epoch=1), ErrorCode.INVALID_REQUEST, "HB5"),
        (DESCRIBE, ErrorCode.GROUP_ID_NOT_FOUND, "AD2"),
    ],
)
def test_a_group_of_rocketmq_is_no_consumer_group(
    request_: ConsumerGroupHeartbeat | ConsumerGroupDescribe, error: ErrorCode, row: str
) -> None:
    group = RocketMqGroup(group_id="g", incarnation="i")
    effects = step(group, "g", Received("requests-0-1", request_), 0, CoordinatorConfig())
    (reply,) = effects.replies
    assert isinstance(reply.response, ErrorResponse)
    assert (reply.response.error_code, reply.response.rule) == (error, row)
    assert effects.group is group


@pytest.mark.parametrize("fail", ["fail request", "fail deadline"])
def test_refusals_of_every_request_have_a_text_too(fail: str) -> None:
    """Rows F1 and F2."""
    world = Recorded(*STABLE, fail)
    commands = ["A e3"] if fail == "fail request" else ["at 60s", "A e3"]
    (answer,) = [reply.response for reply in world.play(*commands)[-1].replies]
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert answer.rule == ("F1" if fail == "fail request" else "F2")
    assert answer.error_message


def test_a_takeover_restarts_sessions_and_leaves_other_timers_their_time() -> None:
    """Row TM12: the rebalance timer has as long to go as before the outage."""
    world = Recorded(*REVOKING)
    member = world.consumer_group.members["A"]
    assert member.rebalance_deadline_ms == 3_000 + 60_000
    world.run("outage 100s")
    assert member.rebalance_deadline_ms == 3_000 + 60_000 + 100_000
    assert member.session_deadline_ms == 104_000 + 45_000


def test_a_changed_rebalance_timeout_counts_from_the_next_arming() -> None:
    """Row TM10."""
    world = Recorded(*REVOKING)
    member = world.consumer_group.members["A"]
    world.run("A e2 timeout=10s")
    assert (member.rebalance_timeout_ms, member.rebalance_deadline_ms) == (10_000, 63_000)


def test_deadlines_of_one_time_fire_in_the_order_of_their_kinds() -> None:
    """Row TM14: sessions by member id first. Each removal is a group epoch of its own."""
    world = Recorded("topics foo=4", "B e0", "A e0", "C e0")
    removed = [e for e in history(world.play("at 45s")) if e.type is EntryType.MEMBER_REMOVED]
    assert [(e.member_id, e.generation) for e in removed] == [("A", 4), ("B", 5), ("C", 6)]
