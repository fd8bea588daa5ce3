"""What a classic group keeps of the topics that its JoinGroups report, for an upgrade."""

from uuid import UUID

from assignors.kafka.api import Subscription
from assignors.kafka.consumer_protocol import PROTOCOL_TYPE, encode_subscription
from state.config import CoordinatorConfig
from state.inputs import Received
from state.kafka.classic_group import ClassicGroup
from state.kafka.group import Topic
from state.kafka.history import EntryType
from state.kafka.requests import JoinGroup, Protocol, TopicMetadata
from state.kafka.step import step
from state.kafka.topic_images import TopicImage, TopicImages
from state.timeline import Row, Timeline


class Joining:
    """One static member that joins again and again."""

    def __init__(self) -> None:
        self.timeline = Timeline("g", None, CoordinatorConfig())
        self.sent = 0

    def join(
        self,
        topics: TopicImages | None,
        subscribed: tuple[str, ...] = ("t",),
        protocol_type: str = PROTOCOL_TYPE,
    ) -> None:
        """Join, and form the generation."""
        self.sent += 1
        request = JoinGroup(
            group_id="g",
            correlation_id="c",
            reply_partition=0,
            api_version=9,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=10_000,
            group_instance_id="i",
            protocol_type=protocol_type,
            protocols=[Protocol("range", encode_subscription(Subscription(subscribed)))],
            topics=topics,
        )
        self.timeline.apply(Row(self.sent * 5_000, f"requests-0-{self.sent}", request))
        self.timeline.fire_until(self.sent * 5_000 + 3_000)

    def known(self) -> dict[str, Topic | None]:
        assert isinstance(self.timeline.group, ClassicGroup)
        return self.timeline.group.topics


def image(number: int, partitions: int) -> TopicImage:
    return TopicImage(UUID(int=number), partitions)


def topic(number: int, partitions: int) -> Topic:
    return Topic(UUID(int=number).bytes, partitions)


def test_the_latest_report_of_a_topic_holds() -> None:
    joining = Joining()
    joining.join({"t": image(1, 4)})
    assert joining.known() == {"t": topic(1, 4)}
    joining.join({"t": image(1, 6)})
    assert joining.known() == {"t": topic(1, 6)}
    joining.join(None)
    assert joining.known() == {"t": topic(1, 6)}
    joining.join({"t": image(2, 3)})
    assert joining.known() == {"t": topic(2, 3)}
    joining.join({"t": None})
    assert joining.known() == {"t": None}


def test_a_lower_count_of_the_same_topic_is_ignored() -> None:
    joining = Joining()
    joining.join({"t": image(1, 6)})
    joining.join({"t": image(1, 4)})
    assert joining.known() == {"t": topic(1, 6)}


def test_a_generation_forgets_the_topics_that_no_member_subscribes_to() -> None:
    joining = Joining()
    joining.join({"t": image(1, 6), "owned": image(2, 1)})
    assert joining.known() == {"t": topic(1, 6)}
    joining.join({"u": image(3, 1)}, subscribed=("u",))
    assert joining.known() == {"u": topic(3, 1)}


def test_a_refused_join_reports_nothing() -> None:
    joining = Joining()
    joining.join({"t": image(1, 6)})
    joining.join({"t": image(9, 9)}, protocol_type="connect")
    assert joining.known() == {"t": topic(1, 6)}


def test_the_watcher_answers_what_an_upgrade_wanted_to_know() -> None:
    """Row MI14."""
    a, b = UUID(int=1), UUID(int=2)
    group = ClassicGroup("g", "requests-0-0", topics={"known": Topic(a.bytes, 2)}, wanted_topics=["wanted"])
    images: TopicImages = {
        "known": TopicImage(a, 1),
        "wanted": TopicImage(b, 3),
        "other": TopicImage(UUID(int=3), 1),
    }
    cause = Received("requests-0-1", TopicMetadata(group_id="g", topics=images))
    effects = step(group, "g", cause, 1_000, CoordinatorConfig())
    assert group.topics == {"known": Topic(a.bytes, 2), "wanted": Topic(b.bytes, 3)}
    assert group.wanted_topics == []
    assert [(e.type, e.topics) for e in effects.history] == [(EntryType.TOPICS_CHANGED, ["wanted"])]
    assert not step(group, "g", cause, 1_000, CoordinatorConfig()).history
