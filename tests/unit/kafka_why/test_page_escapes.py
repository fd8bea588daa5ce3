"""What strangers say is shown as text on the pages of members and of the coordinator, in each field."""

import html
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from kafka_why.contract.claims import Claim
from kafka_why.contract.codec import encode
from kafka_why.metrics.http import HttpPort
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.page.words import isolated
from kafka_why.service_state import StateReader
from tests.harness import scraped
from tests.unit.kafka_why.page_facts import LAYOUT, fleet_of, member, played, take_entries, view
from tests.unit.kafka_why.test_page_access import answer, serving
from tests.unit.kafka_why.test_page_coordinator import pending
from tests.unit.kafka_why.why_story import END_MS, STORY

PAGE = Path(__file__).parents[3] / "kafka_why" / "page"
FIELDS = (
    "client",
    "host",
    "group",
    "reason",
    "message",
    "request",
    "key",
    "owner",
    "folder",
    "checkpoint",
    "version",
    "skipped",
    "setting",
    "value",
    "transaction",
    "alarm",
    "replica",
)


def hostile(field: str) -> str:
    return f"\"'><script>{field}()</script>{{{{ 7919*7907 }}}}\u202e\u05d0 \u05d1"


def shown(field: str) -> str:
    """Return the text of a page that shows this: without what reorders the text beside it."""
    text = hostile(field).replace("\u202e", r"\u202e").replace("\u05d0 \u05d1", "\u2068\u05d0 \u05d1\u2069")
    return html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


@pytest.fixture(scope="module")
def served() -> Iterator[socket.socket]:
    """Yield a page of which each field that a stranger can set is hostile."""
    topics = ServiceTopics()
    there = replace(member("m"), client_id=hostile("client"), client_host=hostile("host"))
    fleet = fleet_of(view(hostile("group"), members=[there]))
    blamed = [
        replace(e, client_id=hostile("client"), client_host=hostile("host")) if e.client_id else e
        for e in played(*STORY)
    ]
    take_entries(fleet, blamed, END_MS, hostile("group"))
    fleet.apply(LAYOUT.events_topic, None, encode(started()), END_MS)
    topics.apply_claim(0, b"c", encode(claim()))
    letter = {name: hostile(name) for name in ("reason", "message", "request")}
    topics.apply_dead_letter(END_MS, encode({**letter, "key": hostile("key").encode()}))
    waiting = replace(pending(END_MS), transactional_id=hostile("transaction"), group_id=hostile("group"))
    topics.apply_pending(b"p", encode(waiting))
    topics.complete()
    overview = Overview(fleet)
    lines = overview.lines(END_MS)
    busy = scraped.busy()
    busy.status = replace(busy.status, alarm=hostile("alarm"))
    busy.replica = replace(busy.replica, phase="seeding", reason=hostile("replica"))
    with (
        HttpPort("127.0.0.1", 0, busy.registry, state=lambda: encode(busy.state())) as port,
        serving(
            fleet=fleet,
            lines=lambda: lines,
            members=lambda: overview.members,
            service_topics=topics,
            service_state=StateReader(port.url),
            now_ms=lambda: END_MS,
        ) as listening,
    ):
        yield listening


def started() -> dict[str, object]:
    return {
        "type": "CoordinatorStarted",
        "at_ms": END_MS,
        "from_batch": 1,
        "settings": {hostile("setting"): hostile("value")},
        "skip": [hostile("skipped")],
        "code_version": hostile("version"),
    }


def claim() -> Claim:
    return Claim(
        epoch=1,
        claim_id="c",
        owner_id="o",
        requests_topic_id="t",
        host=hostile("owner"),
        pid=1,
        folder=hostile("folder"),
        since_ms=0,
        tick_interval_ms=100,
        checkpoint=hostile("checkpoint"),
    )


def body(listening: socket.socket, path: str) -> str:
    status, _, found = answer(listening, path)
    assert status == 200
    return found.decode()


def test_every_field_is_escaped_in_html(served: socket.socket) -> None:
    text = "".join(body(served, path) for path in ("/members", "/members?by=host", "/coordinator"))
    for field in FIELDS:
        assert f"<script>{field}" not in text
        assert shown(field) in text, field
    assert "\u202e" not in text
    assert str(7919 * 7907) not in text


def test_url_parameters_are_escaped_in_html(served: socket.socket) -> None:
    path = "%22%3E%3Cscript%3Eq()%3C/script%3E"
    for name in ("q", "sort", "by", "page"):
        assert "<script>q" not in body(served, f"/members?{name}={path}")


def test_json_contains_what_the_pages_show(served: socket.socket) -> None:
    for path, field in (
        ("/api/members", "client"),
        ("/api/members?by=host", "host"),
        ("/api/coordinator", "key"),
    ):
        assert json.dumps(hostile(field), ensure_ascii=False) in body(served, path)


def test_search_field_echoes_the_text_unchanged(served: socket.socket) -> None:
    asked = "a\u202e\u05d0b"
    assert f'name="q" id="search" value="{asked}"' in body(served, f"/?q={quote(asked)}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gruppe é 群", "gruppe é 群"),
        ("48\u202f210 records", "48\u202f210 records"),
        ("two\nlines", "two\nlines"),
        ("a\u202eb\u2069\u200f\u200bc", r"a\u202eb\u2069\u200f\u200bc"),
        ("\u05d0\u05d1-12 14 times", "\u2068\u05d0\u05d1\u2069-12 14 times"),
        ("\u0627 \u0628, \u05d0", "\u2068\u0627 \u0628\u2069, \u2068\u05d0\u2069"),
    ],
)
def test_bidirectional_text_cannot_reorder_its_surroundings(text: str, shown: str) -> None:
    assert isolated(text) == shown


def test_every_template_is_written_through_the_same_filter() -> None:
    """Titles, attributes and texts of pictures, too: only what the page itself writes may be markup."""
    templates = "".join(file.read_text() for file in (PAGE / "templates").glob("*.html"))
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", templates)
    assert set(re.findall(r'="\{\{ ([\w.]+)\|exact }}"', templates)) == {
        "it.group_id",
        "selection.text",
        "text",
    }
    assert "innerHTML" not in (PAGE / "static" / "page.js").read_text()
