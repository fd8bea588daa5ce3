"""All limits follow from the settings of two topics."""

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import (
    CREATED_TOPIC_BYTES,
    DENSE_RECORD_BYTES,
    LEAST_REQUESTS_TOPIC_BYTES,
    LEAST_RESPONSES_TOPIC_BYTES,
    MIB,
    RECORD_OVERHEAD_BYTES,
    TopicLayout,
    excess,
    size_limits,
)
from records.topic_sizes import with_topic_sizes


@pytest.mark.parametrize(
    ("requests", "responses", "limits"),
    [
        # Topics of earlier versions keep their limits.
        (LEAST_REQUESTS_TOPIC_BYTES, LEAST_RESPONSES_TOPIC_BYTES, (2 * MIB, 7 * MIB, 2 * MIB)),
        (CREATED_TOPIC_BYTES, CREATED_TOPIC_BYTES, (12_517_376, 12_517_376, 12_517_376)),
        (CREATED_TOPIC_BYTES, LEAST_RESPONSES_TOPIC_BYTES, (12_517_376, 7 * MIB, 12_517_376)),
        # More is not used.
        (100 * MIB, 2**31 - 1, (33_488_896, 33_488_896, 33_488_896)),
    ],
)
def test_record_limits_follow_from_topic_settings(
    requests: int, responses: int, limits: tuple[int, int, int]
) -> None:
    assert size_limits(requests, responses) == limits
    assert limits[0] + RECORD_OVERHEAD_BYTES <= requests
    assert limits[1] + RECORD_OVERHEAD_BYTES <= responses


def test_unreadable_topic_settings_give_the_lowest_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = TopicLayout.named()
    unread: dict[str, Any] = {"topic": {layout.requests_topic: {}, layout.responses_topic: {}}}
    admin = SimpleNamespace(describe_configs=lambda *_, **__: unread, close=lambda: None)
    monkeypatch.setattr(kafka_clients, "admin", lambda _: admin)
    with capture_logs() as logs:
        found = with_topic_sizes(ClientConfig("nowhere:1"), layout)
    assert found.sizes == (2 * MIB, 7 * MIB, 2 * MIB)
    assert logs[0]["topics"] == [layout.requests_topic, layout.responses_topic]


def test_large_record_is_limited_in_bytes_and_in_entries() -> None:
    most = 3 * DENSE_RECORD_BYTES
    assert excess(b"x" * most, most) is None
    assert f"the record has {most + 1} bytes" in str(excess(b"x" * (most + 1), most))
    assert excess(b"{}," * (DENSE_RECORD_BYTES // 3), most) is None
    assert "commas" in str(excess(b"{}," * (DENSE_RECORD_BYTES // 3 + 1), most))
