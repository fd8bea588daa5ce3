"""ConsumerGroupHeartbeat: a refused one changes nothing, and says what is wrong."""

import pytest
from msgspec import msgpack, structs

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ConsumerGroupDescribe, ConsumerGroupHeartbeat
from kafka_why.contract.kafka.responses import ConsumerGroupHeartbeatResponse
from kafka_why.contract.messages import ErrorCode, ErrorResponse
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.inputs import Received
from state.kafka.context import Effects, KafkaGroup
from state.rocketmq.group import RocketMqGroup
from tests.harness.scenario_player import ScenarioPlayer


class Recorded(ScenarioPlayer):
    """A world that keeps the effects of its last step."""

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = super()._step(group, group_id, event, now_ms, config)
        assert isinstance(effects, Effects)
        self.effects = effects
        return effects


# A static member, a dynamic one, and partitions for both.
TWO_MEMBERS = ("topics foo=4", "A(ia) e0", "at 2s", "B e0", "at 3s", "A e2", "A e2 owned[0,1]", "B e3")
STABLE = (*TWO_MEMBERS, "at 4s")
REVOKING = (*TWO_MEMBERS[:6], "at 4s")
AWAY = (*TWO_MEMBERS, "A(ia) -2", "at 4s")
CLASSIC = ("topics foo=4", "join X topics=foo api=3", "at 3s", "sync X assign=@X:foo-0", "at 4s")


def content(group: KafkaGroup | None) -> bytes:
    """Return the group without its clock and the number of its history entries."""
    return b"" if group is None else msgpack.encode(structs.replace(group, seq=0, clock_ms=0))


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
def test_heartbeat_error_leaves_the_group_unchanged_and_names_the_fault(
    before: tuple[str, ...], command: str, error: str, row: str
) -> None:
    world = Recorded()
    for earlier in before:
        world.run(earlier)
    was = content(world.any_group())
    world.run(command)
    effects = world.effects
    (answer,) = [reply.response for reply in effects.replies]
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    assert (answer.error_code.name, answer.rule) == (error, row)
    assert answer.error_message is not None
    assert len(answer.error_message.split()) > 2
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == (None, 0, 0)
    assert answer.assignment is None
    assert content(world.any_group()) == was
    assert effects.earliest_armed_ms is None
    assert {entry.type for entry in effects.history} <= {EntryType.MEMBER_FENCED, EntryType.JOIN_REFUSED}


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
def test_consumer_heartbeat_to_a_rocketmq_group_is_refused(
    request_: ConsumerGroupHeartbeat | ConsumerGroupDescribe, error: ErrorCode, row: str
) -> None:
    group = RocketMqGroup(group_id="g", incarnation="i")
    effects = step(group, "g", Received("requests-0-1", request_), 0, CoordinatorConfig())
    (reply,) = effects.replies
    assert isinstance(reply.response, ErrorResponse)
    assert (reply.response.error_code, reply.response.rule) == (error, row)
    assert effects.group is group
