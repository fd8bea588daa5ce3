"""Groups out of the bytes of `__consumer_offsets`: one read forwards, all of them backwards."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from struct import pack
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecordsBuilder

from cli import main
from kafka_why import stored_groups
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import KAFKAS_OFFSETS_TOPIC
from kafka_why.observed.consumer_offsets.decode import decode
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import RecordPosition
from kafka_why.observed.step import observe
from kafka_why.stored_groups import GroupUpdate, LogPart, StoredGroups
from kafka_why.stored_log import Batch, LogWalk, OpenTransactions, Progress, StoredLog
from kafka_why.topic_reader import GatewayAddress, NamesById
from kafka_why.why.history import HistoryUnavailable, read_folder
from kafka_why.why.offsets_topic import GroupRecords
from streaming.query.admission import LogRow
from tests.harness.observed_log import REAL, REAL_OF_OTHERS, Watched, converted_rows, real_records, real_rows

GROUPS = [(REAL, "classic"), (REAL, "consumer"), (REAL_OF_OTHERS, "queue"), (REAL_OF_OTHERS, "counts")]
GZIP = 1
_ATTRIBUTES = 22  # the byte of a batch with its lower attributes
_CONTROL = 0b10_0000
_COMMIT = pack(">hh", 0, 1)
_ABORT = pack(">hh", 0, 0)


def batch(rows: Sequence[LogRow], compression: int = 0, producer_id: int = -1) -> bytes:
    """Rows of successive offsets in one batch, of a transaction if it has a producer."""
    of_transaction = {
        "transactional": True,
        "producer_id": producer_id,
        "producer_epoch": 0,
        "base_sequence": 0,
    }
    builder = MemoryRecordsBuilder(2, compression, 1_000_000, **(of_transaction if producer_id >= 0 else {}))
    for row in rows:
        builder.append(row.at_ms, row.key, row.value or None)
    builder.close()
    return pack(">q", rows[0].offset) + bytes(builder.buffer())[8:]


def marker(offset: int, producer_id: int, key: bytes) -> bytes:
    """Return the end of a producer's transaction."""
    data = bytearray(batch([LogRow(0, offset, 0, key, pack(">hi", 0, 0))], producer_id=producer_id))
    data[_ATTRIBUTES] |= _CONTROL
    return bytes(data)


def requests(rows: Iterable[LogRow]) -> list[list[LogRow]]:
    """Return the rows by the time at which they were written, as the coordinator puts them into batches."""
    return [list(of_time) for _, of_time in groupby(rows, key=lambda row: row.at_ms)]


class Stored(StoredLog):
    """A log of which these are the responses to fetches."""

    def __init__(self, responses: Iterable[bytes]) -> None:
        self.responses = responses

    def read(self, partition: int, walk: LogWalk, progress: Progress = lambda *_: None) -> Iterator[Batch]:
        return (found for response in self.responses for found in walk.batches(response))


def read(group_id: str, data: Sequence[bytes], end: int) -> tuple[GroupRecords, LogWalk]:
    """Read the group, one response after the other."""
    part = GroupRecords(group_id, 0, NamesById(dict), 0, 0)
    part.read(Stored(data), end)
    return part, part.walk


def observed(group_id: str, rows: Iterable[LogRow]) -> list[HistoryEntry]:
    """Return the entries of a group that follow from its records one by one."""
    group: ObservedGroup | None = None
    entries = []
    for row in rows:
        record = decode(row.key, row.value or None)
        if record.group_id == group_id:
            name = f"{KAFKAS_OFFSETS_TOPIC}-0-{row.offset}"
            seen = observe(group, group_id, record.content, RecordPosition(row.at_ms, name, name), {})
            group = None if seen.is_over else seen.group
            entries += seen.history
    return entries


@pytest.mark.parametrize(("path", "group_id"), GROUPS, ids=[group_id for _, group_id in GROUPS])
@given(ends=st.sets(st.integers(1, 20)), compression=st.sampled_from([0, GZIP]))
def test_history_is_the_same_however_the_fetched_records_are_split(
    path: Path, group_id: str, ends: set[int], compression: int
) -> None:
    rows = real_rows(path)
    stored = [batch(some, compression) for some in requests(rows)]
    cuts = [0, *sorted(end for end in ends if end < len(stored)), len(stored)]
    responses = [b"".join(stored[a:b]) + stored[0][:50] for a, b in pairwise(cuts)]
    part, walk = read(group_id, responses, len(rows))
    assert part.entries == observed(group_id, rows)
    assert part.entries
    assert (walk.is_over, walk.is_complete, walk.complete_from_ms) == (True, True, rows[0].at_ms)


def test_evidence_is_complete_from_the_batch_after_the_last_gap() -> None:
    rows = real_rows()
    whole = [batch(some) for some in requests(rows)]
    missing_batch = read("classic", [b"".join([*whole[:3], *whole[4:]])], len(rows))[1]
    assert (missing_batch.is_complete, missing_batch.complete_from_ms) == (False, requests(rows)[4][0].at_ms)
    longest = max(range(len(whole)), key=lambda n: len(requests(rows)[n]))
    cleaned = bytearray(whole[longest])
    cleaned[60] -= 1  # the number of records
    in_batch = read("classic", [b"".join([*whole[:longest], cleaned, *whole[longest + 1 :]])], len(rows))[1]
    assert (in_batch.is_complete, in_batch.complete_from_ms) == (False, requests(rows)[longest][0].at_ms)


def test_offsets_topic_may_end_with_a_gap() -> None:
    rows = real_rows()
    walk = read("classic", [b"".join(map(batch, requests(rows))), b""], len(rows) + 5)[1]
    assert walk.is_over


@pytest.mark.parametrize("compression", [0, GZIP])
def test_records_that_compaction_removed_are_not_counted(compression: int) -> None:
    rows = real_rows()
    whole = [batch(some, compression) for some in requests(rows)]
    left = [*whole[:3], *whole[4:]]
    found = LogWalk(0, len(rows), b"").batches(b"".join(left))
    assert sum(one.records_count for one in found) == len(rows) - len(requests(rows)[3])


@pytest.mark.parametrize(
    ("key", "said"), [(_COMMIT, "the last commit of its partitions was"), (_ABORT, "had a commit since")]
)
def test_commits_of_a_transaction_count_once_it_has_committed(key: bytes, said: str) -> None:
    rows = [row for row in real_rows() if decode(row.key, row.value or None).group_id == "classic"]
    generations = [row for row in rows if row.key[1] == 2]
    commits = [row for row in rows if row.key[1] < 2]
    before = [row._replace(offset=n) for n, row in enumerate([*generations[:3], *commits])]
    end = len(before)
    stored = [batch([row], producer_id=7 if row.key[1] < 2 else -1) for row in before]
    stored += [marker(end, 7, key), batch([generations[3]._replace(offset=end + 1)])]
    part, _ = read("classic", [b"".join(stored)], end + 2)
    (removed,) = [entry for entry in part.entries if entry.type is EntryType.MEMBER_REMOVED]
    assert said in removed.reason


def test_transactional_commit_counts_from_the_end_of_its_transaction() -> None:
    (row, *_) = [row for row in real_rows() if row.key[1] < 2]
    offset_at = 2  # the value has the offset after its version
    plain, later = (
        row._replace(offset=0),
        row._replace(offset=1, value=row.value[:offset_at] + pack(">q", 77) + row.value[offset_at + 8 :]),
    )
    stored = [batch([plain]), batch([later], producer_id=7), marker(2, 7, _COMMIT)]
    part, _ = read("classic", [b"".join(stored)], 3)
    assert part.group is not None
    ((partitions),) = part.group.offsets.values()
    assert [offset.offset for offset in partitions.values()] == [77]


ALL_MS, NOTHING_MS = 0, 2**62


def log_of(path: Path) -> list[LogRow]:
    """Return the rows of all groups as those of one partition."""
    return [row._replace(offset=number) for number, row in enumerate(real_rows(path))]


def part_of(data: Sequence[bytes], first: int, end: int) -> LogPart:
    found = LogPart(first, end, OpenTransactions())
    for one in LogWalk(first, end, b"").batches(b"".join(data)):
        found.take(one)
    return found


class Known:
    """The groups, entries and views of a reader that follows the topic."""

    def __init__(self) -> None:
        self.groups = StoredGroups(NamesById(dict))
        self.entries: dict[str, list[HistoryEntry]] = {}
        self.views: dict[str, GroupSnapshot | None] = {}

    def take(self, news: GroupUpdate) -> None:
        if news.replaces_entries:
            self.entries[news.group_id] = []
        self.entries.setdefault(news.group_id, []).extend(news.entries)
        self.views[news.group_id] = news.view

    def state(self) -> dict[str, object]:
        """Return the state of the groups, without what only earlier records show."""
        return {g: v and (v.state, v.generation, v.members) for g, v in self.views.items()}


def read_all(path: Path, cuts: Sequence[int], window_ms: int) -> Known:
    """Read what is after the last cut, and then the slices between the cuts, the newest first."""
    data = [batch(rows) for rows in requests(log_of(path))]
    number, known = len(log_of(path)), Known()
    bounds = sorted({0, *(cut % (number + 1) for cut in cuts)})
    for news in known.groups.append(0, part_of(data, bounds[-1], number)):
        known.take(news)
    for first, end in reversed([*pairwise(bounds)]):
        for news in known.groups.prepend(0, part_of(data, first, end), window_ms):
            known.take(news)
    return known


@pytest.mark.parametrize("path", [REAL, REAL_OF_OTHERS], ids=["consumers", "share and streams"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=5))
def test_history_read_backwards_equals_that_read_forwards(path: Path, cuts: list[int]) -> None:
    forwards, backwards = read_all(path, [], ALL_MS), read_all(path, cuts, ALL_MS)
    assert {g: e for g, e in backwards.entries.items() if e} == forwards.entries
    assert backwards.views == forwards.views


@pytest.mark.parametrize("path", [REAL, REAL_OF_OTHERS], ids=["consumers", "share and streams"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=5))
def test_current_state_needs_only_the_last_records_before_the_window(path: Path, cuts: list[int]) -> None:
    assert read_all(path, cuts, NOTHING_MS).state() == read_all(path, [], ALL_MS).state()


def test_groups_over_the_limit_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_groups, "MAX_GROUPS", 1)
    known = read_all(REAL, [], ALL_MS)
    assert (len(known.views), known.groups.left_out) == (1, True)


def test_converted_group_is_not_shown_as_new_by_page_or_why() -> None:
    rows, known = converted_rows(), Known()
    data = [batch(some) for some in requests(rows)]
    for news in known.groups.append(0, part_of(data, 0, len(rows))):
        known.take(news)
    of_why, _ = read("consumer", [b"".join(data)], len(rows))
    for entries in (known.entries["consumer"], of_why.entries):
        assert {EntryType.MEMBER_ADDED, EntryType.GROUP_EPOCH_BUMPED} <= {entry.type for entry in entries}
        added = [entry.client_id for entry in entries if entry.type is EntryType.MEMBER_ADDED]
        assert (entries[0].seq > 1, added) == (True, ["k2"]), "k1 was a member before"


HISTORY = Watched().take(real_records(REAL_OF_OTHERS)).history


def write(folder: Path, name: str, batch: int, entries: list[HistoryEntry]) -> None:
    """A file of a batch."""
    day = folder / "events" / "date=2026-11-26"
    day.mkdir(parents=True, exist_ok=True)
    columns = {
        "group_id": [entry.group_id for entry in entries],
        "value": [encode(entry).decode() for entry in entries],
        "batch": [batch] * len(entries),
    }
    pq.write_table(pa.table(columns), day / name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder in which the file with the last name has the first batches."""
    write(tmp_path, "to-000000000003.parquet", 3, HISTORY[:20])
    write(tmp_path, "batch-000000000004.parquet", 4, HISTORY[20:])
    return tmp_path


def test_all_entries_of_a_group_are_read_in_order(folder: Path) -> None:
    found = read_folder(folder, "queue")
    assert found.entries == [entry for entry in HISTORY if entry.group_id == "queue"]


def test_why_reports_from_an_output_folder(folder: Path) -> None:
    result = CliRunner().invoke(main, ["why", "counts", "--from-dir", str(folder)])
    assert result.exit_code == 0, result.output
    assert "gave up active 0 2-3 in 190 ms" in result.output


def test_an_unknown_group_and_an_empty_folder_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HistoryUnavailable, match=r"group queues is unknown.*did you mean queue"):
        read_folder(folder, "queues")
    (tmp_path / "new" / "events" / "date=2026-11-26").mkdir(parents=True)
    for empty in (tmp_path / "events", tmp_path / "new"):
        with pytest.raises(HistoryUnavailable, match="has no files in events"):
            read_folder(empty, "queue")


@pytest.mark.parametrize("arguments", [[], ["--bootstrap-servers", "127.0.0.1:1", "--from-dir", "."]])
def test_exactly_one_source_option_is_required(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["why", "g", *arguments])
    assert result.exit_code == 2
    assert "takes one of these options: --bootstrap-servers, --from-dir" in result.output


@pytest.mark.parametrize("command", [["why", "g"], ["page"]])
def test_a_gateways_address_is_refused(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers' own groups are not those that a client of the gateway asks for."""

    def refuse(client_config: ClientConfig, prefix: str) -> NoReturn:
        raise GatewayAddress(f"{client_config} is a gateway")

    monkeypatch.setattr(f"kafka_why.cli.{'parameters' if command == ['page'] else 'why'}.layout_on", refuse)
    result = CliRunner().invoke(main, [*command, "--bootstrap-servers", "127.0.0.1:1"])
    assert (result.exit_code, result.output) == (1, "Error: 127.0.0.1:1 is a gateway\n")
