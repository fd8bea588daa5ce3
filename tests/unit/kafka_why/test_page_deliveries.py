"""The page of a share group's deliveries, by real requests to a real server."""

from kafka_why.contract.telemetry import GONE, Counted
from kafka_why.page.deliveries import CACHE_MS, DeliveriesCache
from kafka_why.page.words import thousands
from kafka_why.why.deliveries.report import DeliveryReport
from kafka_why.why.history import History, HistoryUnavailable
from tests.unit.kafka_why.page_facts import fleet_of, view
from tests.unit.kafka_why.test_deliveries import counted, report, row, suspect
from tests.unit.kafka_why.test_page_access import answer, serving
from tests.unit.kafka_why.test_page_share import observed_view

POISON = suspect(deliveries=5, releases=5, released_by=("<b>a</b>", "b"), is_last=True, outcome=GONE)


def read(group_id: str, from_ms: int, to_ms: int) -> DeliveryReport | None:
    record = counted([row("<b>a</b>", accepted=1_500, released=3)], (POISON,))
    return report(group_id, [(to_ms, record)], from_ms, to_ms) if group_id == "queue" else None


def without(group_id: str, since_ms: int) -> History:
    raise HistoryUnavailable(f"group {group_id} is unknown")


def test_share_group_of_the_brokers_has_a_page_of_its_deliveries() -> None:
    with serving(read=without, deliveries=DeliveriesCache(read)) as listening:
        status, _, body = answer(listening, "/group?id=queue")
        assert status == 200
        text = body.decode()
        assert "orders-0@4711: delivered 5 times (limit 5), released 5 times by " in text
        assert "1 record fails, and others pass: probably poison" in text
        assert f">{thousands(1_500)}</td>" in text
        assert "<b>a</b>" not in text, "a member chooses its id"
        assert answer(listening, "/group?id=another")[0] == 404


def test_only_the_page_of_a_share_group_shows_deliveries() -> None:
    fleet = fleet_of(observed_view("queue", 19), view("other"))
    with serving(fleet=fleet, read=without, deliveries=DeliveriesCache(read)) as listening:
        shared, other = (answer(listening, f"/group?id={name}")[2].decode() for name in ("queue", "other"))
    assert "orders-0@4711" in shared
    assert "Members</h2>" in shared
    assert "Deliveries" not in other


def test_delivery_report_is_cached_for_some_seconds() -> None:
    asked: list[str] = []

    def count(group_id: str, from_ms: int, to_ms: int) -> DeliveryReport | None:
        asked.append(group_id)
        return read(group_id, from_ms, to_ms)

    kept = DeliveriesCache(count)
    for at_ms in (0, CACHE_MS - 1, CACHE_MS):
        assert kept.report("queue", (at_ms, at_ms + 10 * CACHE_MS)) is not None
    assert len(asked) == 2
    for number in range(100):
        kept.report(f"g{number}", (0, 1))
    assert len(kept._known) <= 32


def test_rows_beyond_the_bound_are_counted() -> None:
    def many(group_id: str, from_ms: int, to_ms: int) -> DeliveryReport | None:
        rows = [row("a", number, accepted=1) for number in range(700)]
        return report(group_id, [(from_ms, counted(rows, others=Counted()))], from_ms, to_ms)

    found = DeliveriesCache(many).view("queue", (0, 1))
    assert found is not None
    assert (len(found.rows), found.rows_left_out) == (500, 201)
