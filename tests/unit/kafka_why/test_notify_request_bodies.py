"""The bodies of requests."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_why.notify.events import EndedRebalance, RebalanceFinder
from kafka_why.notify.messages import (
    MAX_LINES,
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    Link,
    Message,
    Status,
    rebalance_message,
)
from kafka_why.notify.request_bodies import FIRES_MS, SHAPES
from kafka_why.why.model import Removed
from tests.harness.histories import Recorder
from tests.unit.kafka_why.notify_messages import alarm, rebalance, stuck

NOW_MS = 1_700_000_000_000
LINES = [("why", "no heartbeat within 10000 ms"), ("", "and more"), ("formed", "generation 1 -> 2")]


def body(shape: str, *messages: Any) -> Any:
    return json.loads(SHAPES[shape].body(messages, NOW_MS))


def first_rebalance() -> EndedRebalance:
    rebalances = RebalanceFinder()
    for entry in Recorder().play("join w api=3", "at 4s", "sync w"):
        rebalances.add(entry, is_sent=False)
    (ended,) = rebalances.take_ended()
    return ended


def test_client_text_in_a_message_is_escaped_and_truncated() -> None:
    group_id, ended, names = first_rebalance()
    cause = replace(ended.cause, client_reason="\u202e" + 9 * MAX_TEXT_CHARS * "x")
    removed = [Removed("w", 0, "it left") for _ in range(9 * MAX_LINES)]
    message = rebalance_message(group_id, replace(ended, cause=cause, removed=removed), names, lambda _: None)
    assert len(message.lines) == MAX_LINES
    said = dict(message.lines)["it said"]
    assert (said[:8], said[-3:], len(said)) == ("\\u202exx", "...", MAX_NAME_CHARS)
    words = replace(ended.cause, client_reason=9 * MAX_TEXT_CHARS * "x ")
    said = dict(rebalance_message(group_id, replace(ended, cause=words), names, lambda _: None).lines)[
        "it said"
    ]
    assert (said[-3:], len(said)) == ("...", MAX_TEXT_CHARS)


def test_notify_json_body_has_every_field() -> None:
    told = body("json", rebalance(lines=LINES, page="https://page/group?id=orders"), alarm())
    assert (told["version"], told["sent_ms"]) == (1, NOW_MS)
    assert told["messages"][0] == {
        "id": "rebalance:orders:i:1",
        "kind": "rebalance",
        "status": "happened",
        "subject": "orders",
        "group": "orders",
        "sentence": "session timeout: worker-3",
        "lines": [list(line) for line in LINES],
        "began_ms": 1_000,
        "ended_ms": 2_000,
        "page": "https://page/group?id=orders",
    }
    assert (told["messages"][1]["group"], told["messages"][1]["ended_ms"]) == (None, None)


def test_slack_body_has_a_text_with_the_link() -> None:
    told = body(
        "slack", rebalance(lines=LINES, page="https://page/group?id=orders"), stuck(Status.ENDED), alarm()
    )
    assert told == {
        "text": "*orders* rebalanced: session timeout: worker-3 <https://page/group?id=orders|page>\n"
        "> why: no heartbeat within 10000 ms\n"
        "*orders*: It is over: orders-4 has no commit since 3 min 5 s\n"
        "*The coordinator*: It has an alarm: the disk is full",
        "unfurl_links": False,
        "unfurl_media": False,
    }


def test_group_name_cannot_mention_a_slack_channel() -> None:
    name = "<!channel> & <https://evil|here>\n*x*"
    text = body("slack", stuck(group=name, sentence="<!here>"))["text"]
    assert text == ("*&lt;!channel&gt; &amp; &lt;https[:]//evil|here&gt;\\n*x**: &lt;!here&gt;")


@pytest.mark.parametrize("text", ["http://evil", "slack://x", "www.evil.example", "evil.example/login"])
@pytest.mark.parametrize("shape", ["slack", "alertmanager", "alertmanager-webhook"])
def test_client_text_never_becomes_a_link(shape: str, text: str) -> None:
    _, ended, names = first_rebalance()
    cause = replace(ended.cause, client_reason=f"see {text}")
    sent = rebalance_message(f"a {text}", replace(ended, cause=cause), names, lambda _: "https://page/")
    told = json.dumps(body(shape, sent)).replace("https://page/", "")
    assert text not in told
    assert "evil" in told or "slack[:]//x" in told


@pytest.mark.parametrize(
    "name", [30_000 * "g", 10_000 * "g ", 10_000 * "\n"], ids=["word", "words", "escaped"]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_long_group_ids_are_truncated_and_stay_distinct(shape: str, name: str) -> None:
    _, ended, names = first_rebalance()
    link: Link = lambda group_id: f"https://page/{group_id}"  # noqa: E731
    told = [json.dumps(body(shape, rebalance_message(g, ended, names, link))) for g in (name, f"{name}2")]
    assert max(map(len, told)) < 3_000
    assert all("https://page/None" in it for it in told)
    assert shape == "slack" or told[0] != told[1]


GONE_ON = "2023-11-14T22:18:20.000Z"
"""FIRES_MS after NOW_MS."""


@pytest.mark.parametrize(
    ("message", "labels", "ends_at"),
    [
        (
            rebalance(),
            {"alertname": "GroupRebalance", "severity": "info", "consumergroup": "orders"},
            GONE_ON,
        ),
        (stuck(), {"alertname": "GroupStuck", "severity": "warning", "consumergroup": "orders"}, GONE_ON),
        (
            stuck(Status.ENDED),
            {"alertname": "GroupStuck", "severity": "warning", "consumergroup": "orders"},
            "1970-01-01T00:00:05.000Z",
        ),
        (
            alarm(),
            {"alertname": "CoordinatorAlarm", "severity": "critical", "alarm": "It has an alarm"},
            GONE_ON,
        ),
    ],
)
def test_alertmanager_body_has_the_labels(message: Message, labels: dict[str, str], ends_at: str) -> None:
    (alert,) = body("alertmanager", message)
    assert alert["labels"] == labels
    assert alert["annotations"]["summary"] == message.sentence
    assert (alert["startsAt"], alert["endsAt"]) == ("1970-01-01T00:00:01.000Z", ends_at)
    again_ms = SHAPES["alertmanager"].again_ms
    assert again_ms is not None and 2 * again_ms < FIRES_MS, "it is sent again before it ends there"


def test_alertmanagers_webhook_has_its_version_and_each_alerts_status() -> None:
    told = body("alertmanager-webhook", rebalance(), stuck(), stuck(Status.ENDED))
    assert (told["version"], told["status"], told["receiver"]) == ("4", "firing", "group-coordinator")
    assert [alert["status"] for alert in told["alerts"]] == ["resolved", "firing", "resolved"]
    ends = [alert["endsAt"] for alert in told["alerts"]]
    assert ends == ["1970-01-01T00:00:02.000Z", "0001-01-01T00:00:00Z", "1970-01-01T00:00:05.000Z"]
    fingerprints = [alert["fingerprint"] for alert in told["alerts"]]
    assert fingerprints[0] != fingerprints[1] == fingerprints[2]
    assert body("alertmanager-webhook", stuck(Status.ENDED))["status"] == "resolved"
