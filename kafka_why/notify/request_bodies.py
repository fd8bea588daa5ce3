"""The bodies of requests, in four formats: our JSON, Slack's, Alertmanager's API and Alertmanager's
webhooks.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kafka_why.notify.messages import (
    ALARM,
    MAX_NAME_CHARS,
    REBALANCE,
    Message,
    Status,
    safe_text,
    shortened_id,
    unique_label,
)
from kafka_why.page.words import iso

VERSION = 1
FIRES_MS = 300_000
"""The time for which an alert fires if it reports a rebalance or is not refreshed."""
REFRESH_MS = 60_000
"""The interval at which a lasting alert is sent again, as Prometheus does, because otherwise
Alertmanager ends it.
"""
# The labels of the lines that a Slack message has.
_SLACK_LABELS = ("why", "it said", "took", "awaited", "silent", "removed", "moved")
_NEVER = "0001-01-01T00:00:00Z"
"""The time that Alertmanager writes for an alert without an end."""


class Shape(NamedTuple):
    """A format of requests."""

    # Returns a request's JSON, from messages and the time in ms.
    body: Callable[[Sequence[Message], int], bytes]
    max_messages: int = 100  # of one request
    # While a problem lasts, its message is sent again after this time, or never if this is None.
    again_ms: int | None = None


def _encode_json(messages: Sequence[Message], now_ms: int) -> bytes:
    return msgspec.json.encode(
        {"version": VERSION, "sent_ms": now_ms, "messages": list(map(_with_short_ids, messages))}
    )


def _with_short_ids(message: Message) -> Message:
    """Shorten long ids. They are not escaped, because programs read them."""
    group = None if message.group is None else shortened_id(message.group)
    return replace(message, id=shortened_id(message.id), subject=shortened_id(message.subject), group=group)


def _slack(messages: Sequence[Message], now_ms: int) -> bytes:
    """Encode as in https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks"""
    text = "\n".join(map(_slack_text, messages))
    return msgspec.json.encode({"text": text, "unfurl_links": False, "unfurl_media": False})


def _slack_text(message: Message) -> str:
    subject = "The coordinator" if message.group is None else message.group
    verb = " rebalanced" if message.kind == REBALANCE else ""
    over = "It is over: " if message.status is Status.ENDED else ""
    link = "" if message.page is None else f" <{_slack_escaped(message.page)}|page>"
    name = _slack_escaped(safe_text(subject, MAX_NAME_CHARS))
    head = f"*{name}*{verb}: {over}{_slack_escaped(message.sentence)}{link}"
    lines = [f"{label}: {text}" for label, text in message.lines if label in _SLACK_LABELS]
    return "\n".join([head, *(f"> {_slack_escaped(line)}" for line in lines)])


def _slack_escaped(text: str) -> str:
    """Escape a text, so that a group's name cannot mention a channel or make a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _alerts(messages: Sequence[Message], now_ms: int) -> bytes:
    """Encode as `POST /api/v2/alerts` of Alertmanager."""
    return msgspec.json.encode([_alert(message, _fires_until_ms(message, now_ms)) for message in messages])


def _fires_until_ms(message: Message, now_ms: int) -> int:
    """Return the time at which Alertmanager ends the alert if it is not sent again."""
    return (message.ended_ms or now_ms) if message.status is Status.ENDED else now_ms + FIRES_MS


def _alert(message: Message, ends_ms: int | None) -> dict[str, Any]:
    """Return an alert that ends at `ends_ms`, or is without an end if that is None.

    Two rebalances of a group within FIRES_MS have the same labels, so they are one alert.
    """
    labels = {
        "alertname": _alert_name(message.kind),
        "severity": {REBALANCE: "info", ALARM: "critical"}.get(message.kind, "warning"),
    }
    labels |= (
        {"alarm": unique_label(message.subject)}
        if message.group is None
        else {"consumergroup": unique_label(message.group)}
    )
    annotations = {"summary": message.sentence}
    if message.lines:
        annotations["description"] = "\n".join(f"{label} {text}".strip() for label, text in message.lines)
    if message.page is not None:
        annotations["page"] = message.page
    return {
        "labels": labels,
        "annotations": annotations,
        "startsAt": iso(message.began_ms),
        "endsAt": _NEVER if ends_ms is None else iso(ends_ms),
        "generatorURL": message.page or "",
    }


def _alert_name(kind: str) -> str:
    """Return a name such as `GroupRebalance`, `GroupWithoutMembers` or `CoordinatorAlarm`."""
    words = "".join(word.capitalize() for word in kind.split("-"))
    return f"{'Coordinator' if kind == ALARM else 'Group'}{words}"


def _webhook(messages: Sequence[Message], now_ms: int) -> bytes:
    """Encode as Alertmanager's webhook, version 4: https://prometheus.io/docs/alerting/latest/configuration

    A rebalance is an alert that is already resolved.
    """
    alerts = []
    for message in messages:
        status = "firing" if message.status is Status.BEGAN else "resolved"
        fingerprint = sha256(message.id.encode()).hexdigest()[:16]
        alerts.append(_alert(message, message.ended_ms) | {"status": status, "fingerprint": fingerprint})
    fires = any(alert["status"] == "firing" for alert in alerts)
    return msgspec.json.encode(
        {
            "version": "4",
            "groupKey": "{}:{}",
            "truncatedAlerts": 0,
            "status": "firing" if fires else "resolved",
            "receiver": "group-coordinator",
            "groupLabels": {},
            "commonLabels": {},
            "commonAnnotations": {},
            "externalURL": messages[0].page or "",
            "alerts": alerts,
        }
    )


SHAPES = {
    "json": Shape(_encode_json),
    "slack": Shape(_slack, max_messages=20),
    "alertmanager": Shape(_alerts, again_ms=REFRESH_MS),
    "alertmanager-webhook": Shape(_webhook),
}
