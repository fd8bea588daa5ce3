"""The topic watcher and patterns whose topics are filtered by members' gateways (rows RA2, RA5). It reports
no topic that no gateway has checked for the group, but a digest by which the group learns that there are
other topics.
"""

from typing import Any
from uuid import UUID

import pytest

from kafka_why.contract.kafka.requests import RegexResolution, RegexResolved
from kafka_why.contract.kafka.share_requests import TopicImage
from records import topic_patterns
from records.topic_patterns import digest
from streaming.service.topic_watch.group_topics import ClusterTopics, GroupUpdate
from tests.unit.streaming.test_group_topics import FAILS, OLD, OTHER, Images, Watch, told

HIDDEN = TopicImage(UUID(int=9), 1)
SEEN = digest(["hidden", "t"])
WATCHED: dict[str, Any] = {"topics": {"t": OLD}, "resolved": {".*": ["t"]}, "checked": {".*": SEEN}}
"""The view of a group whose members' gateways saw `hidden` and left it out."""


def resolved(
    poll: int, seen: list[str], *, others: dict[str, Any] | None = None, **topics: Any
) -> GroupUpdate:
    result = RegexResolution(topics, 5_000 * poll, seen=digest(seen))
    return RegexResolved(group_id="g", patterns={".*": result} | (others or {}))


@pytest.mark.parametrize(
    ("view", "polls", "sent"),
    [
        pytest.param({}, [{"t": OLD, "hidden": HIDDEN}] * 5, [[]] * 5, id="all was seen"),
        pytest.param(
            {},
            [{"t": OLD, "hidden": HIDDEN, "new": OTHER}],
            [[resolved(1, ["hidden", "new", "t"], t=OLD)]],
            id="a new topic by its digest and not by its name",
        ),
        pytest.param(
            {},
            [{"t": OLD, "hidden": HIDDEN}, {"t": None, "hidden": HIDDEN}, {"t": None, "hidden": HIDDEN}],
            [[], [], [told("g", t=None), resolved(3, ["hidden"])]],
            id="deletion at the second poll in a row",
        ),
        pytest.param(
            {},
            [{"t": OLD, "hidden": HIDDEN}, {"t": FAILS, "hidden": HIDDEN}, {"t": OLD, "hidden": HIDDEN}],
            [[]] * 3,
            id="a topic that a broker cannot show for a moment",
        ),
        pytest.param(
            {"topics": {"t": None}},
            [{"t": None, "hidden": HIDDEN}],
            [[resolved(1, ["hidden"])]],
            id="gone before a start",
        ),
        pytest.param(
            {"topics": {}, "resolved": {}, "checked": {".*": ""}},
            [{"t": OLD}] * 3,
            [[]] * 3,
            id="it waits for a gateway's first check",
        ),
        pytest.param(
            {"checked": {".*": ""}}, [{"t": OLD, "new": OTHER}] * 3, [[]] * 3, id="it waits for a check"
        ),
        pytest.param(
            {"resolved": {".*": ["t"], "n.*": []}, "checked": {".*": digest(["t"])}},
            [{"t": OLD, "new": OTHER}],
            [[resolved(1, ["new", "t"], t=OLD, others={"n.*": RegexResolution({"new": OTHER}, 5_000)})]],
            id="other patterns as ever",
        ),
    ],
)
def test_group_is_sent_a_topics_digest_if_its_gateways_missed_a_topic_change(
    view: dict[str, Any], polls: list[Images], sent: list[list[GroupUpdate]]
) -> None:
    watch = Watch()
    watch.publish("g", **WATCHED | view)
    assert not watch.groups.is_waiting
    assert [watch.see(**images) for images in polls] == sent


@pytest.mark.parametrize("checked", [{".*": SEEN}, {}])
def test_slow_pattern_keeps_its_earlier_topics_and_digest(
    checked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the members would lose their partitions when the cluster gets more topics."""
    watch = Watch()
    watch.publish("g", {"t": OLD, "hidden": HIDDEN}, resolved={".*": ["hidden", "t"]}, checked=checked)
    assert watch.see(t=OLD, hidden=HIDDEN) == []
    monkeypatch.setattr(topic_patterns, "MATCHING_MAX_S", 0.0)
    assert watch.see(t=OLD, hidden=HIDDEN, new=OTHER) == []


def test_topics_that_brokers_mark_as_internal_match_no_pattern() -> None:
    """The gateway omits them, too. Otherwise the digests would always differ."""
    watch = Watch()
    watch.publish("g", **WATCHED)
    images: Images = {"t": OLD, "hidden": HIDDEN, "marked": OTHER}
    cluster = ClusterTopics(images, frozenset(images), 1, frozenset({"marked"}))
    assert [watch.groups.compare(cluster, at_s) for at_s in (5.0, 10.0, 15.0)] == [[]] * 3
