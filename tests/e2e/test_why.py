"""`group-coordinator why` on a real broker: it reads the group's history and nobody else's."""

import json
import re
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import count

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from cli import main
from clients.coordinator_client import Header
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import encode, pack, pack_key
from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.requests import JoinGroup, Protocol
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.telemetry import LAST_POLL, MemberTelemetry, telemetry_key
from kafka_why.partitioner import partition_of
from kafka_why.why.history import read_history
from kafka_why.why.live_sources import LiveHistory
from streaming.service.topics import prepare_topics
from tests.harness.histories import Recorder
from tests.harness.waiting import wait_until
from tests.unit.kafka_why.why_story import DAY_MS, MINUTE_MS, STORY, quiet_for, with_others

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PARTITIONS = 3
_names = (f"why-test-{number}" for number in count())


@pytest.fixture
def layout(broker: EmbeddedBroker) -> TopicLayout:
    layout = TopicLayout.named(next(_names), request_partitions=PARTITIONS, reply_partitions=1)
    prepare_topics(broker.client_config, layout)
    return layout


def write(broker: EmbeddedBroker, layout: TopicLayout, history: Iterable[AnyHistoryEntry]) -> None:
    producer = kafka_clients.producer(broker.client_config)
    for event in history:
        producer.send(
            layout.events_topic,
            msgspec.json.encode(event),
            event.group_id.encode(),
            partition=partition_of("g", PARTITIONS),
            timestamp_ms=event.at_ms,
        )
    producer.close()


def why(broker: EmbeddedBroker, layout: TopicLayout, *arguments: str) -> Result:
    prefix = layout.events_topic.removesuffix("-events")
    common = ["--bootstrap-servers", broker.bootstrap_servers, "--prefix", prefix]
    return CliRunner().invoke(main, ["why", *arguments, *common])


def test_why_prints_text_and_json(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    history = Recorder().play(*STORY)
    others = Recorder().play(*(f"join m{number} api=3 group=other-{number}" for number in range(9)))
    write(broker, layout, [*history[:20], *others, *history[10:]])

    text = why(broker, layout, "g", "--page-url", "http://127.0.0.1:8080")
    assert text.exit_code == 0, text.output
    assert "session timeout: worker-3" in text.stdout
    assert text.stdout.endswith("\n\nhttp://127.0.0.1:8080/group?id=g\n")
    assert "Note" not in text.stdout  # the ten entries that are there twice are no gap

    told = why(broker, layout, "g", "-o", "json")
    assert [r["cause"]["kind"] for r in json.loads(told.stdout)["rebalances"]] == [
        "member joined",
        "session timeout",
        "member joined",
        "member left",
    ]


def test_follow_shows_entries_written_after_its_start(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    history = Recorder().play(*STORY)
    write(broker, layout, history[:20])
    with closing(LiveHistory(broker.client_config, layout, "g")) as live:
        others = Recorder().play("join m api=3 group=other")
        write(broker, layout, [*others, *history[20:]])
        found: list[AnyHistoryEntry] = []

        def has_all() -> bool:
            found.extend(live.more())
            return len(found) >= len(history) - 20

        wait_until(has_all, "the entries")
    assert found == history[20:]


def at(begin_ms: int, entry: HistoryEntry) -> HistoryEntry:
    """Return the entry with its time shifted by this much."""
    last_ms = entry.last_rebalance_at_ms
    return replace(
        entry,
        at_ms=begin_ms + entry.at_ms,
        last_rebalance_at_ms=None if last_ms is None else begin_ms + last_ms,
    )


@pytest.mark.parametrize(("before_days", "days"), [(1, 1), (10, 15)])
def test_since_reads_only_the_end_of_a_long_topic(
    broker: EmbeddedBroker, layout: TopicLayout, before_days: int, days: int
) -> None:
    """The report of the last hour equals the report of the whole topic, of 2,890 or of 36,010 records."""
    begin_ms = time.time_ns() // 1_000_000 - days * DAY_MS - 10 * MINUTE_MS
    records = [at(begin_ms, entry) for entry in with_others(quiet_for(days), before_days=before_days)]
    write(broker, layout, records)
    since_ms = begin_ms + days * DAY_MS - 50 * MINUTE_MS

    whole = read_history(broker.client_config, layout, "g")
    part = read_history(broker.client_config, layout, "g", since_ms)
    assert (whole.records_read, whole.from_start, part.from_start) == (len(records), True, False)
    # The last hour has 70, and a client takes up to 500 at once: once for each of two earlier assignments.
    assert part.records_read <= 70 + 2 * 500

    rebalances = json.loads(why(broker, layout, "g", "-o", "json").stdout)["rebalances"]
    told = json.loads(why(broker, layout, "g", "-o", "json", "--since", f"{60}m").stdout)
    assert told["rebalances"] == [rebalances[-1] | {"number": 1}]
    assert told["notes"] == []


def test_why_without_coordinator_topics_asks_if_it_was_started(broker: EmbeddedBroker) -> None:
    told = why(broker, TopicLayout.named("nobody-was-here"), "orders")
    assert told.exit_code == 1
    assert "has the coordinator been started?" in told.stderr


def test_why_reports_polls_from_client_telemetry(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    """The last poll is from the telemetry topic, whose times are the broker's, the limit from the request."""
    story = Recorder().play(*STORY)
    left = next(e for e in story if e.type is EntryType.MEMBER_REMOVED and e.client_reason)
    assert left.member_id is not None
    late_ms = time.time_ns() // 1_000_000 - 5_000 - left.at_ms
    partition = partition_of("g", PARTITIONS)
    joins = [e for e in story if e.type is EntryType.MEMBER_ADDED and e.member_id == left.member_id]
    request = f"{layout.requests_topic}-{partition}-0#1"
    history = [replace(e, at_ms=e.at_ms + late_ms, cause=request if e in joins else e.cause) for e in story]
    write(broker, layout, history)
    said = MemberTelemetry(
        version=1,
        group_id="g",
        member_id=left.member_id,
        client_instance_id="i",
        client_id="worker-4",
        client_host="/127.0.0.1",
        principal="User:ANONYMOUS",
        push_interval_ms=60_000,
        metrics={LAST_POLL: 307.0},
    )
    others = [replace(said, group_id="g2"), replace(said, member_id="another")]
    header = Header(
        group_id="g", correlation_id="c", reply_partition=0, api_version=9, client_id="", client_host=""
    )
    join = JoinGroup(
        **header,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        member_id=left.member_id,
        protocol_type="consumer",
        protocols=[Protocol("range", b"")],
    )
    producer = kafka_clients.producer(broker.client_config)
    value = pack([encode(join), encode(join)])
    producer.send(layout.requests_topic, value, pack_key(0), partition=partition)
    for one in (said, *others):
        key = telemetry_key(one.group_id, one.member_id)
        producer.send(layout.telemetry_topic, encode(one), key, partition=partition)
    producer.send(layout.telemetry_topic, b"no record", telemetry_key("g", "?"), partition=partition)
    producer.close()
    lines = [line for line in why(broker, layout, "g").stdout.splitlines() if "its last poll" in line]
    (line,) = lines
    told = r" +client +its last poll was 5 min (\d) s before; max.poll.interval.ms is 5 min 0 s"
    found = re.fullmatch(told, line)
    assert found is not None
    assert int(found[1]) <= 3
