"""Reports of `why` and the page on a share group's deliveries: rows SP32, SP33 and SP35."""

from collections.abc import Iterable
from datetime import UTC

import pytest

from kafka_why.contract.codec import encode
from kafka_why.contract.telemetry import (
    ACCEPTED,
    GONE,
    OPEN,
    REJECTED,
    Counted,
    GroupDeliveries,
    Suspect,
    decode_telemetry,
    deliveries_key,
    is_of_deliveries,
    is_of_group,
    telemetry_key,
)
from kafka_why.why.deliveries.report import ROWS_MAX, SUSPECTS_MAX, DeliveryReport, Sums, Verdict
from kafka_why.why.deliveries.text import MAX_ROWS, deliveries_text, names_of, non_member_notes
from kafka_why.wording import Clock

MINUTE_MS = 60_000


def report(
    group_id: str, records: Iterable[tuple[int, GroupDeliveries]], from_ms: int, to_ms: int
) -> DeliveryReport | None:
    """Return the sums of these records, with the time of each, or None if there are none."""
    sums = Sums(group_id, from_ms, to_ms)
    for at_ms, record in records:
        sums.add(record, at_ms)
    return sums.report()


def counted(rows: list[Counted], suspects: tuple[Suspect, ...] = (), **fields: object) -> GroupDeliveries:
    told = {"gateway_id": "one", "lock_ms": 30_000, "is_limit_known": True, **fields}
    return GroupDeliveries(
        version=1,
        group_id="g",
        took_ms=MINUTE_MS,
        delivery_limit=5,
        rows=rows,
        suspects=list(suspects),
        **told,  # type: ignore[arg-type]
    )


def row(member_id: str, partition: int = 0, **counts: int) -> Counted:
    done = sum(counts.get(name, 0) for name in ("accepted", "released", "rejected", "expired"))
    told = {"delivered": done, **counts}
    return Counted(topic="orders", partition=partition, member_id=member_id, **told)


def suspect(offset: int = 4711, **fields: object) -> Suspect:
    return Suspect(topic="orders", partition=0, offset=offset, **fields)  # type: ignore[arg-type]


def of(*records: GroupDeliveries) -> DeliveryReport:
    found = report("g", [(at * MINUTE_MS, one) for at, one in enumerate(records)], 0, 60 * MINUTE_MS)
    assert found is not None
    return found


def test_sf22_client_receiving_records_without_membership_is_named() -> None:
    shown = of(counted([row("a", accepted=3), row("b", accepted=1), row("c")]))
    assert [*non_member_notes(shown, {"a", "b"})] == []
    (sentence,) = non_member_notes(shown, {"a"})
    assert sentence.startswith("b got records but was never in the group")


def text_of(*records: GroupDeliveries) -> str:
    shown = of(*records)
    return deliveries_text(shown, Clock(UTC), names_of(shown))


def test_delivery_report_has_a_limited_number_of_rows_and_suspects() -> None:
    rows = [row("m", partition, accepted=1) for partition in range(ROWS_MAX + 5)]
    many = tuple(suspect(offset, outcome=GONE) for offset in range(SUSPECTS_MAX + 5))
    found = of(counted(rows, many, others=row("", accepted=7)))
    assert found.others is not None
    assert found.others.accepted == 5 + 7
    assert len(found.suspects) == SUSPECTS_MAX
    assert found.suspects[0].offset == 5, "the oldest are left out"
    shown = text_of(counted(rows, many))
    assert len(shown.splitlines()) < 60
    assert f"others{' ' * 10}" in shown.replace("\t", " ")
    assert str(ROWS_MAX + 5 - MAX_ROWS) in shown


POISON = suspect(deliveries=5, releases=5, released_by=("a", "b"), is_last=True, outcome=GONE)


@pytest.mark.parametrize(
    ("records", "said", "never"),
    [
        pytest.param(
            [counted([row("a", accepted=50, released=3), row("b", accepted=50, released=2)], (POISON,))],
            [
                "orders-0@4711: delivered 5 times (limit 5), released 5 times by a, b; archived",
                "(inferred",
                "1 record fails, and others pass: probably poison",
            ],
            [],
            id="SP32: poison has its offset and who gave it back",
        ),
        pytest.param(
            [
                counted(
                    [row("a", accepted=50, rejected=1)],
                    (suspect(deliveries=1, rejected_by="a", outcome=REJECTED),),
                )
            ],
            ["orders-0@4711: delivered once, rejected by a; archived, or a dead letter"],
            ["inferred"],
            id="SP32: a rejected record is no inference",
        ),
        pytest.param(
            [
                counted(
                    [row("a", released=2)],
                    (suspect(deliveries=2, releases=2, released_by=("a", "b"), outcome=OPEN),),
                ),
                counted(
                    [row("a", accepted=1)],
                    (suspect(deliveries=3, releases=2, released_by=("a", "b"), outcome=ACCEPTED),),
                ),
            ],
            [],
            ["4711", "Verdict"],
            id="SP32: a record that was accepted in the end is not named",
        ),
        pytest.param(
            [
                counted(
                    [
                        row("a", accepted=10, processed_ms=250_000, processed_max_ms=29_100),
                        row("b", accepted=10, processed_ms=1_000, processed_max_ms=200),
                    ]
                )
            ],
            ["a: 25.0 s a record, 29.1 s at most, 97% of the lock's 30.0 s: it needs a longer"],
            ["b: "],
            id="SP35: slow processing is beside the lock",
        ),
        pytest.param(
            [counted([row("a", accepted=10, renewed=40, processed_ms=10, processed_max_ms=1)])],
            ["a: 40 renewals of 10 records: it needs a longer share.record.lock.duration.ms"],
            [],
            id="SP35: many renewals need a longer lock",
        ),
        pytest.param(
            [counted([row("a", accepted=1)], is_limit_known=False)],
            ["5 is assumed"],
            [],
            id="SP31: a limit that is not known is said",
        ),
    ],
)
def test_delivery_text_has_exactly_the_findings_of_its_counts(
    records: list[GroupDeliveries], said: list[str], never: list[str]
) -> None:
    shown = text_of(*records)
    assert [text for text in said if text not in shown] == []
    assert [text for text in never if text in shown] == []


def test_sp34_reports_of_several_gateways_are_merged() -> None:
    one = suspect(deliveries=5, releases=2, released_by=("a", "b"), outcome=OPEN)
    other = suspect(deliveries=4, releases=1, released_by=("c",), is_last=True, outcome=GONE)
    found = of(counted([], (one,)), counted([], (other,), gateway_id="two"))
    (line,) = found.suspects
    assert (found.gateways, line.releases, line.released_by, line.outcome) == (2, 3, ["a", "b", "c"], GONE)


@pytest.mark.parametrize(
    ("rows", "suspects", "verdict", "member_id"),
    [
        ([row("a", accepted=100, rejected=1), row("b", accepted=99)], 1, Verdict.POISON, None),
        ([row("a", released=60), row("b", accepted=99)], 0, Verdict.BAD_MEMBER, "a"),
        ([row("a", released=60), row("b", accepted=99)], 5, Verdict.BAD_MEMBER, "a"),
        ([row("a", released=60), row("b", expired=60)], 60, Verdict.OUTAGE, None),
        ([row("a", released=60)], 60, Verdict.OUTAGE, "a"),
        ([row("a", accepted=60, released=3), row("b", accepted=60)], 0, Verdict.NOTHING, None),
        ([], 0, Verdict.NOTHING, None),
    ],
)
def test_sp33_diagnosis_separates_poison_records_bad_members_and_outages(
    rows: list[Counted], suspects: int, verdict: Verdict, member_id: str | None
) -> None:
    found = of(counted(rows, tuple(suspect(offset, outcome=GONE) for offset in range(suspects))))
    assert (found.verdict, found.member_id) == (verdict, member_id)


def test_delivery_record_round_trips_and_its_key_differs_from_member_keys() -> None:
    one = counted([row("a", accepted=1)], (suspect(outcome=GONE),), others=Counted(delivered=3))
    assert decode_telemetry(encode(one), GroupDeliveries) == one
    assert decode_telemetry(b'{"version": 2, "group_id": "g"}', GroupDeliveries) is None
    key = deliveries_key(one, 7)
    assert is_of_deliveries(key, "g")
    assert not is_of_group(key, "g")
    assert is_of_group(telemetry_key("g", "m"), "g")
    assert not is_of_deliveries(key, "g2")
    assert not is_of_deliveries(telemetry_key("g", "m"), "g")
    assert deliveries_key(one, 8) != key
