"""Conversions: what no scenario shows."""

from uuid import UUID

import pytest

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.protocols.subscriptions import Subscription, decode_version, encode_subscription
from state.kafka.consumer.migration import WANTED_TOPICS_MAX, assignment_bytes
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.protocols import view_of
from streaming.service.topic_watch.group_topics import ClusterTopics, GroupTopics
from tests.harness.scenario_player import ScenarioPlayer


def play(*commands: str) -> ScenarioPlayer:
    """Play commands of scenarios. Each may have an expectation."""
    world = ScenarioPlayer()
    for command in commands:
        world.run(command)
    return world


def test_mi14_topics_wanted_by_a_refused_upgrade_are_limited_to_fit_a_record() -> None:
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
def test_dn4_an_assignment_has_the_version_of_the_subscription(version: int) -> None:
    subscription = encode_subscription(Subscription(("foo",)), version)
    assert decode_version(assignment_bytes({b"1": [0]}, {b"1": "foo"}, subscription)) == version
