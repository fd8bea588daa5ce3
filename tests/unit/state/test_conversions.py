"""Conversions of groups with members, and what classic members of a consumer group see, in single cases."""

from uuid import UUID

import pytest

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.protocols.subscriptions import Subscription, decode_version, encode_subscription
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer.migration import WANTED_TOPICS_MAX, assignment_bytes
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.protocols import view_of
from streaming.service.topic_watch.group_topics import ClusterTopics, GroupTopics
from tests.harness.scenario_player import ScenarioPlayer

NO_DELAY = "config group.initial.rebalance.delay.ms=0"


def play(*commands: str) -> ScenarioPlayer:
    """Play commands of scenarios. Each may have an expectation."""
    world = ScenarioPlayer()
    for command in commands:
        world.run(command)
    return world


def consumer_group(world: ScenarioPlayer) -> ConsumerGroup:
    group = world.any_group()
    assert isinstance(group, ConsumerGroup)
    return group


def classic_group(world: ScenarioPlayer) -> ClassicGroup:
    group = world.any_group()
    assert isinstance(group, ClassicGroup)
    return group


def test_mi14_repeated_refused_upgrade_is_recorded_once() -> None:
    """MI14: a client that tries again and again does not fill the history."""
    world = play(
        NO_DELAY,
        "topics foo=2 bar=2",
        "join X topics=bar session=45s facts=none api=3",
        "sync X assign=@X:bar-0",
        "C e0 names[foo] => COORDINATOR_LOAD_IN_PROGRESS",
    )
    seq = classic_group(world).seq
    assert classic_group(world).wanted_topics == ["bar"]
    world.run("C e0 names[foo] => COORDINATOR_LOAD_IN_PROGRESS")
    assert classic_group(world).seq == seq
    world.run("join X id=@X facts=yes")
    assert classic_group(world).wanted_topics == []
    world.run("C e0 names[foo] => e3 [0,1]")


def test_mi14_topics_wanted_by_a_refused_upgrade_are_limited_to_fit_a_record() -> None:
    names = [f"t{n:04}" for n in range(WANTED_TOPICS_MAX + 1)]
    world = play(
        NO_DELAY,
        "topics foo=2 " + " ".join(f"{name}=1" for name in names),
        f"join X topics={','.join(names)} session=45s facts=none api=3",
        f"sync X assign=@X:{'+'.join(f'{name}-0' for name in names)}",
    )
    refused = world.run("C e0 names[foo] => COORDINATOR_LOAD_IN_PROGRESS")
    assert classic_group(world).wanted_topics == names[:-1]
    assert "t0009 and 991 more topics" in " ".join(refused)


def test_mi14_a_join_that_owns_partitions_of_an_unknown_topic_changes_nothing() -> None:
    world = play("topics foo=2 bar=2", "C e0 names[foo] => e2 [0,1]")
    seq = consumer_group(world).seq
    world.run('join X api=3 topics=foo session=45s facts=none owned="bar 0" => COORDINATOR_LOAD_IN_PROGRESS')
    assert consumer_group(world).seq == seq
    world.run("expect group Stable gE2 aE2")


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
    watcher = GroupTopics()
    watcher.apply(b"g", encode(view_of(consumer_group(world))))
    foo = consumer_group(world).topics["foo"]
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


@pytest.mark.parametrize("protocol", ["coordinator:uniform", "coordinator:range"])
def test_dn7_a_group_that_the_coordinator_assigned_knows_its_partition_counts(protocol: str) -> None:
    """The invariants, which every step checks, compare the counts with the assignment."""
    world = play(
        "topics foo=4",
        "S(is) e0 names[foo] => e2 [0-3]",
        f"join S2 instance=is protocols={protocol} topics=foo session=45s => gen 2",
        "sync S2 => [0-3]",
        "expect group classic Stable generation=2",
    )
    assert classic_group(world).partitions_per_topic == {"foo": 4}


@pytest.mark.parametrize("version", range(4))
def test_dn4_an_assignment_has_the_version_of_the_subscription(version: int) -> None:
    subscription = encode_subscription(Subscription(("foo",)), version)
    assert decode_version(assignment_bytes({b"1": [0]}, {b"1": "foo"}, subscription)) == version
