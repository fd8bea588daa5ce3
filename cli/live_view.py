"""The terminal views: a live view of all groups (what each member holds, and why the group last rebalanced),
and a view of a replay, one entry at a time.

The live view reads the groups from the groups and events topics only, so any other reader can show the same.
On a terminal it is a table that is updated in place; elsewhere each history entry is a line.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import click
import structlog
from kafka.errors import KafkaError
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.history_reader import (
    INCARNATIONS_REMEMBERED,
    AnyView,
    CoordinatorStarted,
    GroupTable,
    HistoryReader,
    decode_any_entry,
    decode_any_snapshot,
)
from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.rocketmq.history import ConnectionSnapshot
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.lifetimes import OutageWarning
from kafka_why.rocketmq_group import client_version, group_state
from kafka_why.topic_reader import TopicReader
from kafka_why.why.live_sources import entry_line, time_of_day
from kafka_why.wording import holdings, is_bare, progress, visible, visible_lines, visible_text
from operations.replay.steps import StepBrowser


class EscapingConsole(Console):
    """A console of rich that escapes all unprintable characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible_lines(segment.text), segment.style)


_POLL_MS = 200
_LAST_ENTRIES = 8

log = structlog.get_logger()


class LiveView:
    """A live view of the groups. `run` shows it, and may be called in a thread.

    The lines of `remarks` and the replica's state, which `replica` returns, are below the table.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        console: Console | None = None,
        *,
        replica: Callable[[], str],
        remarks: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._console = console or EscapingConsole()
        self._replica = replica
        self._remarks = remarks
        self._table: GroupTable[AnyView] = GroupTable(decode_any_snapshot)
        self._history = HistoryReader(from_start=False, remembers=INCARNATIONS_REMEMBERED)
        self._outage_warning = OutageWarning("reading the groups")
        self._entries: deque[str] = deque(maxlen=_LAST_ENTRIES)

    def run(self, stop: threading.Event) -> None:
        """Show existing and new records until `stop` is set. Raises KafkaError."""
        layout = self._layout
        with TopicReader(self._client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
            # The groups topic from its beginning, the events topic from now on.
            reader.start(
                beginning=reader.partitions_of(layout.groups_topic),
                end=reader.partitions_of(layout.events_topic),
            )
            if self._console.is_terminal:
                self._run_table(reader, stop)
            else:
                self._run_lines(reader, stop)

    def _run_table(self, reader: TopicReader, stop: threading.Event) -> None:
        with Live(
            self._render_now(),
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,  # rich would read the sequences of other writers as its own styles
            redirect_stderr=False,
        ) as live:
            while not stop.is_set():
                self._poll(reader, stop)
                # Refresh without new records too, because the ages of the last rebalances grow.
                live.update(self._render_now(), refresh=True)

    def _run_lines(self, reader: TopicReader, stop: threading.Event) -> None:
        while not stop.is_set():
            for line in self._poll(reader, stop):
                self._console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    def _render_now(self) -> RenderableType:
        missing = sum(len(numbers) for numbers in self._history.gaps.values())
        duplicates = self._history.duplicates + self._table.duplicates
        note = (
            f"replica {self._replica()}; "
            f"{duplicates} records were read twice, {missing} history entries are missing"
        )
        notes = visible_text([*self._remarks(), note])
        return render_groups(self._table.groups, self._entries, notes, time.time() * 1000)

    def _poll(self, reader: TopicReader, stop: threading.Event) -> list[str]:
        """Apply the new records, and return their lines."""
        try:
            records = reader.poll(_POLL_MS)
        except KafkaError as error:
            self._outage_warning.failed(error)
            stop.wait(1.0)
            return []
        self._outage_warning.worked()
        lines = [
            line for record in records for line in self._apply_record(record.topic, record.key, record.value)
        ]
        self._entries.extend(lines)
        return lines

    def _apply_record(self, topic: str, key: bytes | None, value: bytes | None) -> Iterator[str]:
        """Update the table, or yield the line of a new history entry or of a start of the coordinator."""
        try:
            if topic != self._layout.events_topic:
                self._table.apply(key, value)
                return
            entry = decode_any_entry(value or b"")
        except UNREADABLE as error:
            log.warning("a record cannot be read", topic=topic, error=str(error))
            return
        if isinstance(entry, CoordinatorStarted):
            yield f"{time_of_day(entry.at_ms)}  a coordinator started"
        elif entry is not None and self._history.is_new(entry):
            yield entry_line(entry)


def render_groups(
    groups: Iterable[AnyView], entries: Iterable[str], notes: str, now_ms: float
) -> RenderableType:
    """Return the table of groups, with the last history entries below it."""
    table = Table(
        "Group",
        "State",
        "Generation",
        "Members and what they hold",
        "Last rebalance",
        expand=True,
        pad_edge=False,
    )
    for group in groups:
        row = _rocketmq_row(group) if isinstance(group, RocketMqSnapshot) else _group_row(group, now_ms)
        table.add_row(*(Text(visible(cell)) for cell in row))
    shown = Text(visible_text(entries), overflow="ellipsis", no_wrap=True)
    return Group(table, shown, Text(notes, style="dim"))


def _group_row(group: GroupSnapshot, now_ms: float) -> list[str]:
    return [
        group.group_id,
        _state_text(group.state, group),
        _generation(group),
        _members_text(group),
        _last_rebalance(group, now_ms),
    ]


def _members_text(group: GroupSnapshot) -> str:
    if not group.truncated or group.state == GroupState.EMPTY:
        return visible_text(member_line(m, group) for m in group.members) or "-"
    # A group's record omits members or partitions that would make it too large. The note says so, because
    # the group would otherwise seem to have none.
    omitted = "partitions" if group.members else "members"
    note = f"the {omitted} are left out: the record would be too large"
    return visible_text([*(f"  {member.member_id}" for member in group.members), note])


def _generation(group: GroupSnapshot) -> str:
    """Return the generation, or for a group with epochs its epoch, and the target's epoch if that differs."""
    if not group.consumer:
        return str(group.generation)
    target = group.consumer.assignment_epoch
    epoch = f"epoch {group.generation}"
    return visible_text([epoch] if target == group.generation else [epoch, f"target {target}"])


def _rocketmq_row(group: RocketMqSnapshot) -> list[str]:
    clients = len({consumer.client_id for consumer in group.consumers})
    return [
        group.group_id,
        _state_text(f"RocketMQ {group_state(group)}", group),
        "-",
        visible_text(client_line(c, group) for c in group.consumers) or "-",
        f"{clients} clients, {group.message_model}: {', '.join(group.subscriptions)}" if clients else "-",
    ]


def _state_text(state: str, group: AnyView) -> str:
    return visible_text([state, *([] if group.quarantined is None else ["quarantined"])])


def client_line(consumer: ConnectionSnapshot, group: RocketMqSnapshot) -> str:
    """Return a consumer's connection. `!` marks a duplicate client id."""
    mark = "!" if consumer.client_id in group.duplicate_client_ids else " "
    return f"{mark} {consumer.client_id} on {consumer.connection}, {client_version(consumer)}"


def member_line(member: MemberSnapshot, group: GroupSnapshot) -> str:
    """Return a member and its partitions. `*` marks the leader.

    In a group with epochs `~` marks a member on the classic protocol, and the line has what the member has to
    give up and what it waits for. The client id precedes a member id that is only a UUID.
    """
    if member.consumer:
        mark = "~" if member.session_timeout_ms else " "  # 0 on the consumer protocol
        who = f"{member.client_id} ({member.member_id})" if is_bare(member.member_id) else member.member_id
        return f"{mark} {who}: {progress(member.consumer)}"
    leader = "*" if member.member_id == group.leader_id else " "
    return f"{leader} {member.member_id}: {holdings(member.assignment, group.protocol_type)}"


def _last_rebalance(group: GroupSnapshot, now_ms: float) -> str:
    if group.last_rebalance_at_ms is None:
        return "never"
    age_s = max(0, int(now_ms - group.last_rebalance_at_ms) // 1000)
    return f"{age_s} s ago: {group.last_rebalance_reason}"


KEYS = (
    "next: n, →   back: b, ←   next in the history: h, H   search: /   again: .   first, last: g, G   quit: q"
)
# Each arrow key in the cursor mode (ESC [) and in the application mode (ESC O) of terminals.
_NEXT = frozenset({"n", " ", "\r", "\n", "\x1b[C", "\x1b[B", "\x1bOC", "\x1bOB"})
_BACK = frozenset({"b", "p", "\x7f", "\x1b[D", "\x1b[A", "\x1bOD", "\x1bOA"})
_QUIT = frozenset({"q", "\x1b"})


def browse_steps(steps: StepBrowser) -> None:
    """Show one entry at a time until the user quits."""
    console = EscapingConsole()
    search, remark = "", ""
    with console.screen(hide_cursor=True) as screen:
        while True:
            screen.update(_render_step(steps, remark))
            key = click.getchar()
            remark = ""
            if key in _QUIT:
                return
            if key == "/":
                search = _ask_search(console)
            if key in ("/", ".") and search:
                remark = "" if steps.find(search) else f"no later entry names {search}"
            else:
                remark = apply_key(steps, key)


def apply_key(steps: StepBrowser, key: str) -> str:
    """Handle a key. Return a remark for the user, or ""."""
    if key in _NEXT:
        steps.move(1)
    elif key in _BACK:
        steps.move(-1)
    elif key in ("g", "G"):
        steps.move(-len(steps) if key == "g" else len(steps))
    elif key in ("h", "H") and not steps.next_history(1 if key == "h" else -1):
        return f"no {'later' if key == 'h' else 'earlier'} entry is in the history"
    return ""


def _render_step(steps: StepBrowser, remark: str) -> Group:
    title = f"entry {steps.at + 1} of {len(steps)}"
    return Group(
        Panel(Text(steps.detail()), title=title, title_align="left"),
        Panel(Text(steps.group()), title="the group afterwards", title_align="left"),
        Text(remark, style="bold") if remark else Text(KEYS, style="dim"),
    )


def _ask_search(console: Console) -> str:
    console.show_cursor()
    try:
        return console.input("search: ").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
    finally:
        console.show_cursor(False)
