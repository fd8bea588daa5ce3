"""What a consumer group knows of its topics by requests and by the topic watcher, and its fingerprint."""

from uuid import UUID

from state.config import CoordinatorConfig
from state.kafka.consumer.topics import forget_unused, topic_metadata
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember, ResolvedRegex
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.modern.topics import fingerprint, look, merge_reported
from state.kafka.requests import TopicMetadata
from state.kafka.topic_images import TopicImage, TopicImages

A, B, C = (UUID(int=n) for n in (1, 2, 3))


def context_of(group: ConsumerGroup, config: CoordinatorConfig | None = None) -> StepContext:
    return StepContext(group, "g", "requests-0-1", 1_000, config or CoordinatorConfig())


def group_of(*names: str, **topics: Topic | None) -> ConsumerGroup:
    member = ConsumerMember("m", subscribed_topic_names=list(names))
    return ConsumerGroup("g", "requests-0-0", members={"m": member}, topics=topics, metadata_stale=False)


def told(group: ConsumerGroup, **images: TopicImage | None) -> StepContext:
    context = context_of(group)
    merge_reported(context, group, images)
    return context


def watched(
    group: ConsumerGroup, images: TopicImages, config: CoordinatorConfig | None = None
) -> StepContext:
    context = context_of(group, config)
    topic_metadata(context, TopicMetadata(group_id="g", topics=images))
    return context


def reasons(context: StepContext) -> list[str]:
    return [entry.reason for entry in context.effects().history]


def test_a_request_only_adds_to_what_is_known() -> None:
    """Row MI7."""
    group = group_of("new", "more", "fewer", "other", "gone", "absent")
    group.topics = {name: Topic(A.bytes, 4) for name in ("more", "fewer", "other", "gone")} | {"absent": None}
    told(
        group,
        new=None,
        more=TopicImage(A, 5),
        fewer=TopicImage(A, 3),
        other=TopicImage(B, 9),
        gone=None,
        absent=TopicImage(C, 1),
    )
    assert group.topics == {
        "absent": Topic(C.bytes, 1),
        "fewer": Topic(A.bytes, 4),
        "gone": Topic(A.bytes, 4),
        "more": Topic(A.bytes, 5),
        "new": None,
        "other": Topic(A.bytes, 4),
    }
    assert list(group.topics) == sorted(group.topics)
    assert group.metadata_stale


def test_a_request_that_reports_nothing_new_changes_nothing() -> None:
    group = group_of("t", t=Topic(A.bytes, 4))
    merge_reported(context_of(group), group, None)
    for image in (TopicImage(A, 4), TopicImage(A, 2), None, TopicImage(B, 9)):
        context = told(group, t=image)
        assert not context.rules and not group.metadata_stale


def test_topics_of_a_new_subscription_have_no_entry_and_awaited_ones_do() -> None:
    """The view of the group shows what the watcher was waited for (row MI12)."""
    group = group_of("awaited")
    assert group.unknown_topics() == ["awaited"]
    assert reasons(told(group, new=TopicImage(B, 1))) == []
    assert reasons(told(group, awaited=TopicImage(A, 2))) == [
        "a request reports: awaited exists with 2 partitions"
    ]
    assert group.unknown_topics() == []


def test_a_deleted_topic_does_not_come_back_by_a_request_or_a_broker_that_lags() -> None:
    """Rows MI8, MI11."""
    group = group_of("t", t=Topic(A.bytes, 4))
    context = watched(group, {"t": None})
    assert context.rules == ["MI11", "MI9"]
    assert reasons(context) == ["in the cluster: t was deleted"]
    assert group.topics == {"t": None} and group.metadata_stale
    group.metadata_stale = False
    told(group, t=TopicImage(A, 4))
    watched(group, {"t": TopicImage(A, 4)})
    assert group.topics == {"t": None} and not group.metadata_stale
    told(group, t=TopicImage(B, 4))
    assert group.topics == {"t": Topic(B.bytes, 4)}


def test_a_topic_that_was_created_again_has_its_new_id_for_good() -> None:
    """Row MI10."""
    group = group_of("t", t=Topic(A.bytes, 4))
    context = watched(group, {"t": TopicImage(B, 2)})
    assert context.rules == ["MI10", "MI9"]
    assert reasons(context) == ["in the cluster: t was deleted and created again with 2 partitions"]
    watched(group, {"t": TopicImage(A, 4)})
    watched(group, {"t": TopicImage(B, 1)})
    assert group.topics == {"t": Topic(B.bytes, 2)}
    assert group.deleted_topic_ids == [A.bytes]


def test_the_watcher_changes_no_epoch_and_no_topic_of_another_group() -> None:
    """Row MI9."""
    group = group_of("t", "u", t=Topic(A.bytes, 4))
    context = watched(group, {"t": TopicImage(A, 6), "u": None, "other": TopicImage(C, 1)})
    assert group.topics == {"t": Topic(A.bytes, 6), "u": None}
    assert (group.group_epoch, group.metadata_stale) == (1, True)
    assert reasons(context) == ["in the cluster: t has 6 partitions instead of 4, u does not exist"]
    assert not watched(group, {"t": TopicImage(A, 6), "u": None}).rules


def test_a_deleted_topic_leaves_the_results_of_patterns_unless_they_come_as_in_kafka() -> None:
    """Decision K21 under row RG9."""
    for at_once, left in ((True, ["u"]), (False, ["t", "u"])):
        group = group_of(t=Topic(A.bytes, 4))
        group.members["m"].subscribed_topic_regex = "."
        group.resolved_regexes = {".": ResolvedRegex(["t", "u"], 1)}
        watched(group, {"t": None}, CoordinatorConfig(regex_resolve_at_once=at_once))
        assert group.resolved_regexes["."].topics == left


def test_the_fingerprint_is_of_the_existing_topics_that_members_subscribe_to() -> None:
    group = group_of("t", "u", t=Topic(A.bytes, 4), u=None, other=Topic(C.bytes, 1))
    assert look(group) and not look(group)
    before = group.metadata_hash
    assert before == fingerprint(group_of("t", t=Topic(A.bytes, 4))) != b""
    group.topics = {"u": None, "t": Topic(A.bytes, 4)}
    assert fingerprint(group) == before
    for t, u in (
        (Topic(A.bytes, 5), None),
        (Topic(B.bytes, 4), None),
        (Topic(A.bytes, 4), Topic(B.bytes, 1)),
    ):
        group.topics = {"t": t, "u": u}
        assert fingerprint(group) != before
    assert fingerprint(group_of("t", t=None)) == b""


def test_what_nothing_refers_to_is_forgotten() -> None:
    """Rows HB45, MI15."""
    group = group_of("named", **{n: Topic(n.encode() * 16, 1) for n in "aptu"})
    group.topics |= {"named": Topic(A.bytes, 1), "none": None}
    member = group.members["m"]
    member.assigned, member.pending_revocation = {b"a" * 16: {0: 1}}, {b"p" * 16: {0: 1}}
    group.target = {"m": {b"t" * 16: [0]}}
    group.resolved_regexes = {"x.*": ResolvedRegex(["u"], 1)}
    forget_unused(context_of(group))
    assert list(group.topics) == ["a", "p", "t", "named"]
    assert group.resolved_regexes == {}
