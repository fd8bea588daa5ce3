"""The topics that a subscribed pattern matches (rows RG1, RG2, RX7)."""

from uuid import UUID

import pytest

from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.layout import KAFKAS_INTERNAL_TOPICS
from records import topic_patterns
from records.topic_patterns import resolve


def images(*names: str) -> dict[str, TopicImage]:
    return {name: TopicImage(UUID(int=number), number) for number, name in enumerate(names, 1)}


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu"]),
        ("(?i)ORDERS", ["orders"]),
        ("ORDERS", []),
        ("rder", []),
        ("orders|pay", ["orders"]),
        ("", []),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, matched: list[str]) -> None:
    topics = images("payments", "orders-eu", "orders")
    resolution = resolve(pattern, topics, at_ms=7)
    assert resolution == RegexResolution({name: topics[name] for name in matched}, at_ms=7)
    assert list(resolution.topics) == matched


def test_subscription_pattern_omits_internal_topics() -> None:
    topics = images("t", "coordinator-requests", *KAFKAS_INTERNAL_TOPICS)
    assert list(resolve(".*", topics, 0, {"coordinator-requests"}).topics) == ["t"]


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "a{2000}", "*"])
def test_pattern_unsupported_by_re2_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Look-arounds and back references are Python's and Java's alone."""
    resolution = resolve(pattern, images("a"), at_ms=7)
    assert resolution.error
    assert resolution == RegexResolution(at_ms=7, error=resolution.error)
    assert capfd.readouterr().err == ""


def test_pattern_with_a_large_program_is_refused() -> None:
    """The time for each name grows with the program."""
    assert "too large" in (resolve("(a?){900}" * 40, images("a"), at_ms=7).error or "")


def test_pattern_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "MATCHING_MAX_S", 0.0)
    resolution = resolve("a+", images("a", "aa"), at_ms=7)
    assert resolution == RegexResolution(at_ms=7, error="it takes longer than 0 s to match the topics")
