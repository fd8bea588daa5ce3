"""How far back `why --since` reads: as far as the report needs, and no further."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.why.history import STAMP_MARGIN_MS, History, entries_since
from kafka_why.why.report import Report, report
from state.config import CoordinatorConfig
from tests.harness.examples import examples
from tests.harness.histories import of_random_log
from tests.unit.kafka_why.page_facts import view
from tests.unit.kafka_why.why_story import MINUTE_MS, quiet_for, with_others
from tests.unit.state.rocketmq_story import night


@dataclass
class Partition:
    """A partition of the events topic; `read` counts the records that were read."""

    group_id: str
    records: Sequence[AnyHistoryEntry]
    stamps_ms: Sequence[int]
    read: int = 0
    begin: int = 0
    views: int = 0

    @property
    def end(self) -> int:
        return len(self.records)

    def offset_at(self, at_ms: int) -> int:
        # As in Kafka: the first record with a timestamp at or after the time, even if not in order.
        found = (offset for offset, stamp_ms in enumerate(self.stamps_ms) if stamp_ms >= at_ms)
        return next(found, self.end)

    def entries(self, first: int, end: int) -> Iterator[AnyHistoryEntry]:
        for record in self.records[first:end]:
            self.read += 1
            if record.group_id == self.group_id:
                yield record

    def view(self) -> GroupSnapshot | None:
        self.views += 1
        ours = [r for r in self.records if r.group_id == self.group_id and isinstance(r, HistoryEntry)]
        if not ours or ours[-1].type is EntryType.GROUP_DELETED:
            return None
        last = ours[-1]
        began = [
            e.at_ms
            for e in ours
            if (e.type, e.incarnation) == (EntryType.PREPARING_REBALANCE, last.incarnation)
        ]
        return view(
            self.group_id,
            incarnation=last.incarnation,
            seq=last.seq,
            at_ms=last.at_ms,
            state=last.to_state,
            state_timestamp_ms=last.at_ms,
            generation=last.generation,
            last_rebalance_at_ms=began[-1] if began else None,
        )


def comparable(part: History | list[HistoryEntry], now_ms: int, since_ms: int) -> Report:
    """Return a report without the parts that depend on how much was read: its beginning, and its notes."""
    whole = part if isinstance(part, History) else History([*part], frozenset(), from_start=True)
    ours = [entry for entry in whole.entries if isinstance(entry, HistoryEntry)]
    found = report("g", ours, now_ms, since_ms, unread=whole.unread)
    assert not any("missing" in note for note in found.notes)
    return replace(found, from_ms=0, notes=[], members=sorted(found.members))


@examples(40)
@given(st.integers(0, 2**32 - 1), st.integers(20, 200), st.randoms(use_true_random=False))
def test_recent_history_gives_the_report_of_the_whole_history(seed: int, length: int, random: Random) -> None:
    histories = of_random_log(seed, length, CoordinatorConfig())
    everything = sorted((e for h in histories.values() for e in h), key=lambda e: e.at_ms)
    stamps_ms = [e.at_ms + random.randrange(STAMP_MARGIN_MS) for e in everything]
    for group_id, history in histories.items():
        if not history:
            continue
        partition = Partition(group_id, everything, stamps_ms)
        first_ms, last_ms = history[0].at_ms, history[-1].at_ms
        since_ms = random.randint(first_ms, last_ms + STAMP_MARGIN_MS * 3)
        found = entries_since(partition, since_ms)
        now_ms = max(last_ms, since_ms) + 1_000
        assert comparable(found, now_ms, since_ms) == comparable(history, now_ms, since_ms)
        assert not found.from_start or found.unread or found.entries == history


def among_others(history: Sequence[HistoryEntry], *, before_days: int) -> Partition:
    records = with_others(history, before_days=before_days)
    return Partition("g", records, [record.at_ms for record in records])


def test_quiet_group_is_reported_from_its_view() -> None:
    history = quiet_for(2)
    partition = among_others(history, before_days=20)
    now_ms = history[-1].at_ms + 10 * MINUTE_MS
    since_ms = now_ms - 5 * MINUTE_MS
    found = entries_since(partition, since_ms)
    assert comparable(found, now_ms, since_ms) == comparable(history, now_ms, since_ms)
    assert found.entries[-1] == history[-1]
    assert partition.views == 1
    assert partition.read < 50


def test_rocketmq_group_history_is_read_in_full() -> None:
    history = night()
    records: list[AnyHistoryEntry] = [*quiet_for(1), *(replace(entry, group_id="rmq") for entry in history)]
    partition = Partition("rmq", records, [record.at_ms for record in records])
    found = entries_since(partition, history[-1].at_ms)
    assert (len(found.entries), found.from_start) == (len(history), True)
