"""A heartbeat of a consumer group's member that has its target, decided in one pass.

`checked_step` compares it with the general step. Random logs report several changes at once, so each field is
changed here alone.
"""

from typing import Any
from uuid import UUID

import pytest

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    ConsumerGroupHeartbeat,
    OffsetCommit,
    RegexResolution,
    TopicIdPartitions,
    TopicMetadata,
)
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.protocols.subscriptions import Subscription, decode_version, encode_subscription
from state import timeline as timeline_module
from state.config import CoordinatorConfig
from state.kafka.consumer.migration import WANTED_TOPICS_MAX, assignment_bytes
from state.kafka.consumer.renewals import RENEWALS
from state.kafka.consumer_group import ClassicMember, ConsumerGroup
from state.kafka.protocols import view_of
from state.protocol import Received
from state.timeline import Row, Timeline
from streaming.service.topic_watch.group_topics import ClusterTopics, GroupTopics
from tests.harness.batches import checked_step, failing_step
from tests.harness.batches import encode as encode_group
from tests.harness.scenario_player import ScenarioPlayer

CONFIG = CoordinatorConfig()
FOO = {"foo": TopicImage(UUID(int=1), 2)}
GROWN = {"foo": TopicImage(UUID(int=1), 3)}
MATCHES = RegexResolution(FOO, 1_000)
COMMON: dict[str, Any] = {
    "group_id": "g",
    "correlation_id": "c",
    "reply_partition": 0,
    "api_version": 9,
    "client_id": "client",
    "client_host": "/10.0.0.1",
}
JOIN: dict[str, Any] = {
    "member_id": "a",
    "instance_id": "i",
    "member_epoch": 0,
    "rebalance_timeout_ms": 30_000,
    "subscribed_topic_names": ["foo"],
    "topic_partitions": [],
    "topics": FOO,
}


def settled() -> ConsumerGroup:
    """Return a group whose only member, a, has its target."""
    timeline = Timeline("g", None, CONFIG, step=checked_step)
    timeline.apply(Row(1_000, "requests-0-0", ConsumerGroupHeartbeat(**COMMON, **JOIN)))
    assert isinstance(timeline.group, ConsumerGroup)
    return timeline.group


def heartbeat(group: ConsumerGroup, **fields: Any) -> ConsumerGroupHeartbeat:
    epoch = group.members["a"].member_epoch
    return ConsumerGroupHeartbeat(**COMMON | {"member_id": "a", "member_epoch": epoch} | fields)


def is_renewal(group: ConsumerGroup, request: ConsumerGroupHeartbeat | OffsetCommit) -> bool:
    """Apply the request, and return True if it was decided in one pass."""
    event = Received("requests-0-1", request)
    effects = checked_step(group, "g", event, 2_000, CONFIG)
    assert effects.group is group
    return RENEWALS[type(request)](group, request, event.request_id, 2_000, CONFIG) is not None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="HB61 nothing"),
        pytest.param({"instance_id": "i"}, id="HB61 its instance id"),
        pytest.param({"client_id": "other", "client_host": "/10.0.0.2"}, id="HB48 another client"),
        pytest.param({"topic_partitions": [TopicIdPartitions(UUID(int=1), [0])]}, id="RC0 its partitions"),
        pytest.param({"checks_topics": True}, id="HB61 a gateway that checks topics"),
    ],
)
def test_unchanged_heartbeat_takes_the_fast_path(fields: dict[str, Any]) -> None:
    group = settled()
    assert is_renewal(group, heartbeat(group, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"member_epoch": 0, "topic_partitions": []}, id="HB10 joins without topics"),
        pytest.param({"member_epoch": -1}, id="HB41 leaves"),
        pytest.param({"member_epoch": 7}, id="HB25 epoch"),
        pytest.param({"member_id": "b"}, id="HB24 member"),
        pytest.param({"instance_id": "j"}, id="HB33 instance id"),
        pytest.param({"instance_id": ""}, id="HB7 instance id"),
        pytest.param({"rack_id": "r"}, id="HB48 rack"),
        pytest.param({"rebalance_timeout_ms": 5_000}, id="HB48 rebalance timeout"),
        pytest.param({"server_assignor": "range"}, id="HB62 assignor"),
        pytest.param({"server_assignor": "unknown"}, id="HB13 assignor"),
        pytest.param({"subscribed_topic_names": ["bar"]}, id="HB49 topics"),
        pytest.param({"subscribed_topic_regex": "f.*", "regex": MATCHES}, id="HB52 pattern"),
        pytest.param({"topics": GROWN}, id="HB53 partitions"),
        pytest.param({"regex": MATCHES}, id="matches of no pattern"),
        pytest.param({"looked": {"": MATCHES}}, id="a check of no pattern"),
    ],
)
def test_heartbeat_with_changes_takes_the_slow_path(fields: dict[str, Any]) -> None:
    group = settled()
    request = heartbeat(group, **fields)
    renewal = RENEWALS[ConsumerGroupHeartbeat]
    assert renewal(group, request, "requests-0-1", 2_000, CONFIG) is None
    checked_step(group, "g", Received("requests-0-1", request), 2_000, CONFIG)


def test_heartbeat_of_a_classic_or_pattern_member_takes_the_slow_path() -> None:
    renewal = RENEWALS[ConsumerGroupHeartbeat]
    classic, pattern, blank = settled(), settled(), settled()
    classic.members["a"].classic = ClassicMember(45_000, [])
    assert renewal(classic, heartbeat(classic), "requests-0-1", 2_000, CONFIG) is None
    pattern.subscribe(pattern.members["a"], [], "f.*")
    assert renewal(pattern, heartbeat(pattern, checks_topics=True), "requests-0-1", 2_000, CONFIG) is None
    blank.members[" "] = blank.members["a"]
    assert renewal(blank, heartbeat(blank, member_id=" "), "requests-0-1", 2_000, CONFIG) is None
    blank.members["a"].instance_id = " "  # of a JoinGroup, which may have such an id
    assert renewal(blank, heartbeat(blank, instance_id=" "), "requests-0-1", 2_000, CONFIG) is None


def commit(epoch: int, *, api_version: int = 9, topic: str = "foo", metadata: str = "") -> OffsetCommit:
    topics = [CommittedTopic(topic, [CommittedPartition(0, 7, committed_metadata=metadata)])]
    common = COMMON | {"api_version": api_version}
    return OffsetCommit(**common, member_id="a", generation_id=epoch, topics=topics)


def test_valid_commit_takes_the_fast_path_and_renews_no_session() -> None:
    group = settled()
    member = group.members["a"]
    deadline_ms = member.session_deadline_ms
    assert is_renewal(group, commit(member.member_epoch))
    assert group.offsets["foo"][0].offset == 7
    assert member.session_deadline_ms == deadline_ms


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param({"epoch": 7}, id="OF8 epoch"),
        pytest.param({"api_version": 8}, id="OF6 version"),
        pytest.param({"topic": "bar"}, id="OF27 the offset may expire"),
        pytest.param({"metadata": "m"}, id="O9 metadata"),
    ],
)
def test_commit_that_may_be_refused_or_expire_takes_the_slow_path(request_of: dict[str, Any]) -> None:
    group = settled()
    request = commit(**{"epoch": group.members["a"].member_epoch} | request_of)
    assert RENEWALS[OffsetCommit](group, request, "requests-0-1", 2_000, CONFIG) is None
    checked_step(group, "g", Received("requests-0-1", request), 2_000, CONFIG)


def test_commit_takes_the_slow_path_if_even_empty_metadata_is_too_long() -> None:
    group, config = settled(), CoordinatorConfig(offset_metadata_max_bytes=-1)
    request = commit(group.members["a"].member_epoch)
    assert RENEWALS[OffsetCommit](group, request, "requests-0-1", 2_000, config) is None
    checked_step(group, "g", Received("requests-0-1", request), 2_000, config)


def play(*commands: str) -> ScenarioPlayer:
    """Play commands of scenarios. Each may have an expectation."""
    world = ScenarioPlayer()
    for command in commands:
        world.run(command)
    return world


def test_mi14_topics_wanted_by_a_refused_upgrade_are_limited() -> None:
    names = [f"t{n:04}" for n in range(WANTED_TOPICS_MAX + 1)]
    world = play(
        "config group.initial.rebalance.delay.ms=0",
        "topics foo=2 " + " ".join(f"{name}=1" for name in names),
        f"join X topics={','.join(names)} session=45s facts=none api=3",
        f"sync X assign=@X:{'+'.join(f'{name}-0' for name in names)}",
    )
    refused = world.run("C e0 names[foo] => COORDINATOR_LOAD_IN_PROGRESS")
    group = world.group()
    assert group is not None and group.wanted_topics == names[:-1]
    assert "t0009 and 991 more topics" in " ".join(refused)


@pytest.mark.parametrize("facts", ["none", "yes"])
def test_mi12_created_topic_reaches_a_converted_group_with_a_classic_subscriber(facts: str) -> None:
    """From the group's view to the record that the watcher sends. The gateway knew nothing of the topic, or
    that there is none.
    """
    world = play(
        "config group.consumer.assignment.interval.ms=0",
        "topics foo=2",
        "C e0 names[foo] => e2 [0,1]",
        f"join X id=x api=3 topics=new session=45s facts={facts} => gen 3",
        "sync X => []",
    )
    group, watcher = world.any_group(), GroupTopics()
    assert isinstance(group, ConsumerGroup)
    watcher.apply(b"g", encode(view_of(group)))
    foo = group.topics["foo"]
    assert foo is not None
    known = TopicImage(UUID(bytes=foo.topic_id), foo.partitions)
    topics = {"foo": known, "new": TopicImage(UUID(int=99), 2)}
    (sent,) = watcher.compare(ClusterTopics(topics, None, 0), 0.0)
    assert sent == TopicMetadata(group_id="g", topics={"new": topics["new"]})
    world.run("topics new=2")
    world.run("topic-metadata watcher")
    world.run("C e2 => e4 -")
    world.run("heartbeat X => REBALANCE_IN_PROGRESS")
    world.run("join X id=x => gen 4")
    world.run("sync X => [new 0,1]")


@pytest.mark.parametrize("version", range(4))
def test_dn4_assignment_uses_the_version_of_the_members_subscription(version: int) -> None:
    subscription = encode_subscription(Subscription(("foo",)), version)
    assert decode_version(assignment_bytes({b"1": [0]}, {b"1": "foo"}, subscription)) == version


def test_failed_request_does_not_undo_earlier_session_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal before any other request is in no journal, one after another request is."""
    fails = failing_step(lambda event: isinstance(event, Received) and event.request_id.startswith("fails"))
    monkeypatch.setattr(timeline_module, "general_step", fails)
    group = settled()
    renewing, other = heartbeat(group), heartbeat(group, member_epoch=7)
    timeline = Timeline("g", group, CONFIG)
    for at_ms in (2_000, 3_000):
        timeline.apply(Row(at_ms, f"renewal-{at_ms}", renewing))
        renewed = encode_group(timeline.group)
        timeline.apply(Row(at_ms, f"fails-{at_ms}", other))
        assert encode_group(timeline.group) == renewed
        timeline.apply(Row(at_ms, f"other-{at_ms}", other))
    assert [fault.cause for fault in timeline.faults] == ["fails-2000", "fails-3000"]
