"""`group-coordinator why`: explains why a group rebalanced."""

import signal
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
from kafka.errors import KafkaError
from msgspec.structs import replace

from kafka_why.cli.output import reading_progress, show, show_json, show_line, show_stderr
from kafka_why.cli.parameters import (
    MOMENT,
    BrokerLogOptions,
    ParsedOption,
    as_object,
    cluster_options,
    link,
    page_url_option,
    prefix_option,
    print_logged_groups,
    read_logs,
)
from kafka_why.cli.rocketmq_cluster import explain_polled, history_and_polls_text, namesrv_options, with_polls
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.kafka.history import SHARE, HistoryEntry
from kafka_why.contract.layout import DEFAULT_PREFIX, TopicLayout
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.now import now_ms
from kafka_why.topic_reader import TopicsMissing, layout_on
from kafka_why.why.broker_logs import history_from_logs, history_with_logs, parse_zone, report_from_logs
from kafka_why.why.deliveries.report import DeliveryReport, LoneDeliveries, read_deliveries
from kafka_why.why.deliveries.text import lone_deliveries_text, non_member_notes
from kafka_why.why.history import (
    History,
    HistoryUnavailable,
    LiveSource,
    latest_view,
    read_folder,
    read_history,
)
from kafka_why.why.report import Report, analyze, report_of
from kafka_why.why.rocketmq.changes import report as rocketmq_report
from kafka_why.why.rocketmq.model import Report as RocketMqReport
from kafka_why.why.share_state import settings_notes
from kafka_why.why.text import report_text
from kafka_why.wording import Clock, VisibleText, visible_text


class _GroupData(NamedTuple):
    """The data that was read about a group."""

    history: History | None  # None if there are only deliveries or brokers' logs
    deliveries: DeliveryReport | None = None  # to a share group, through gateways
    members: Collection[str] = ()  # current member ids of a share group
    notes: Sequence[str] = ()  # for the report
    live: LiveSource | None = None  # a source of new entries; only with --follow


@dataclass(frozen=True, slots=True)
class _Output:
    """The options about the report and its output. The names of the fields are those of the options."""

    output: str  # `text` or `json`
    page_url: str | None
    servers: RocketMqServers | None  # of --namesrv: a RocketMQ cluster to poll, too


class _Cluster(NamedTuple):
    """A cluster to read."""

    client_config: ClientConfig
    prefix: str
    source: str | None  # HISTORY, OFFSETS or POLLING; None to use the first source that has the group
    follows: bool  # True with --follow
    has_logs: bool  # True if brokers' logs are read, too


R = TypeVar("R", Report, RocketMqReport, LoneDeliveries)
_NO_HISTORY = History([], frozenset(), from_start=True, records_read=0)
HISTORY, OFFSETS, POLLING = "history", "offsets", "polling"
_JSON_LINES = "lines"  # an output of one JSON document a line, with --follow


@click.command()
@click.argument("group_id", metavar="GROUP", required=False)
@namesrv_options(explain_polled, ("group_id", "follow", "output", "page_url"))
@cluster_options(required=False)
@click.option(
    "--from-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the folder of `observe --output-dir` instead of topics.",
)
@click.option(
    "--source",
    type=click.Choice((HISTORY, OFFSETS, POLLING)),
    help="The topics of a coordinator of this project or of `observe`, which have reasons; "
    "__consumer_offsets of the cluster's own coordinator; or polls of that coordinator. Default: the first "
    "that has the group.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="After the report, show new entries as they happen, and each rebalance when it is over, until "
    "Ctrl-C. With `-o json` each is a line.",
)
@click.option(
    "--broker-log",
    "files",
    multiple=True,
    metavar="FILE",
    help="Log of a broker, plain or gzip, or - for the standard input; repeatable. It has the reason and the "
    "beginning of each rebalance. Needs no cluster; without GROUP it lists the groups.",
)
@click.option(
    "--log-timezone",
    type=ParsedOption("zone", parse_zone, "Europe/Berlin or +02:00"),
    metavar="ZONE",
    help="Zone of times in --broker-log that name none: Europe/Berlin, UTC, +02:00. Default: this machine's.",
)
@click.option(
    "--since",
    "since_ms",
    type=MOMENT,
    help="Leave out what ended before this: an ISO time, or a duration ago such as 2h or 30m.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
)
@page_url_option
@prefix_option
@as_object(BrokerLogOptions, "logs")
@as_object(_Output, "shown")
def why(
    group_id: str | None,
    client_config: ClientConfig | None,
    from_dir: Path | None,
    source: str | None,
    follow: bool,
    logs: BrokerLogOptions,
    since_ms: int | None,
    shown: _Output,
    prefix: str,
) -> None:
    """Explain a group's rebalances: when, caused by which member, how long, and which partitions moved.

    The clients of a RocketMQ group rebalance by themselves. For such a group the report has the clients that
    came and went, the connections that the coordinator notified, and the client ids on several connections.

    For a share group the report also shows what became of the records that gateways delivered to its
    members (in the last day, unless --since is given), and which records may be poison.

    No setup is needed: where neither a coordinator of this project nor `observe` has written the group's
    history, the command derives it from the records in the cluster's own __consumer_offsets, which go back
    hours or days. It needs READ on that topic, joins no group and writes nothing. If it may not read the
    topic, it polls the group. With --namesrv it polls a group of a RocketMQ cluster: its clients, the queues
    that they hold, and their lag. With --namesrv and --bootstrap-servers the polls follow the group's
    history.
    """
    called_ms = now_ms()
    if group_id is None:
        print_logged_groups(logs, since_ms, shown.output)
        return
    _check_sources(client_config, from_dir, source, logs, follow=follow)
    try:
        if client_config is not None:
            cluster = _Cluster(client_config, prefix, source, follows=follow, has_logs=bool(logs.files))
            data = _read_or_note(cluster, group_id, since_ms, called_ms)
        else:
            data = _GroupData(None if from_dir is None else read_folder(from_dir, group_id))
        if logs.files:
            data = _add_logs(data, logs, group_id)
    except (KafkaError, OSError, ValueError) as error:
        where = client_config or from_dir or ", ".join(logs.files)
        raise click.ClickException(f"cannot read from {where}: {error}") from error
    output = _JSON_LINES if follow and shown.output == "json" else shown.output
    _show_report(group_id, data, called_ms, since_ms, output, shown.servers)
    if shown.page_url is not None and output == "text":
        show(visible_text(["", link(shown.page_url, group_id)]))
    if data.live is not None:
        _follow(data.history or _NO_HISTORY, since_ms, data.live, output)


def _check_sources(
    client_config: ClientConfig | None,
    from_dir: Path | None,
    source: str | None,
    logs: BrokerLogOptions,
    *,
    follow: bool,
) -> None:
    """Raise click.UsageError if the options name no source, or contradict each other."""
    if client_config is not None and from_dir is not None:
        raise click.UsageError("takes one of these options: --bootstrap-servers, --from-dir")
    if client_config is None and from_dir is None and not logs.files:
        raise click.UsageError("takes one of these options: --bootstrap-servers, --from-dir, --broker-log")
    if client_config is None and (source is not None or follow):
        raise click.UsageError("--source and --follow need --bootstrap-servers")
    if logs.files and follow:
        raise click.UsageError("--follow does not go with --broker-log")


def _add_logs(data: _GroupData, logs: BrokerLogOptions, group_id: str) -> _GroupData:
    """Merge the lines about the group in brokers' logs into its history, or derive the history from them."""
    lines, notes = read_logs(logs, group_id)
    if data.history is not None:
        return data._replace(history=history_with_logs(data.history, lines, notes))
    if data.deliveries is not None and not lines.events:
        return data
    return data._replace(history=history_from_logs(lines, group_id, notes))


def _show_report(
    group_id: str,
    data: _GroupData,
    now_ms: int,
    since_ms: int | None,
    output: str,
    servers: RocketMqServers | None,
) -> None:
    """Show the report on a group of Kafka or RocketMQ, or a share group's deliveries without a history."""
    history = data.history
    if history is None:
        assert data.deliveries is not None, "a group is found by its history or its deliveries"
        _show(LoneDeliveries(group_id, data.deliveries), lone_deliveries_text, output)
    elif not history.entries:
        show_stderr(f"The history of group {group_id} has no entries yet.")
    elif isinstance(history.entries[-1], RocketMqHistoryEntry):
        _show_rocketmq(group_id, history, now_ms, since_ms, output, servers)
    else:
        _show_kafka(group_id, history, data, now_ms, since_ms, output)


def _follow(history: History, since_ms: int | None, live: LiveSource, output: str) -> None:
    """Show new entries, and each rebalance when it is over, until Ctrl-C or SIGTERM."""
    from kafka_why.why.live_sources import Follower

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends the command like Ctrl-C
    follower = Follower(history, since_ms, live, show, show_line if output == _JSON_LINES else None)
    if output == "text":
        show()
    with suppress(KeyboardInterrupt), closing(live):
        follower.run(threading.Event())


def _read_or_note(cluster: _Cluster, group_id: str, since_ms: int | None, now_ms: int) -> _GroupData:
    """Read the data of a group. If there is none, return a note if brokers' logs are read, too.

    Otherwise raise HistoryUnavailable.
    """
    try:
        return _read_cluster(cluster, group_id, since_ms, now_ms)
    except HistoryUnavailable as error:
        if not cluster.has_logs:
            raise
        return _GroupData(history=None, notes=[f"there are no records: {error}"])


def _read_cluster(cluster: _Cluster, group_id: str, since_ms: int | None, now_ms: int) -> _GroupData:
    """Read the data of a group from the first source that has it. Raises HistoryUnavailable."""
    client_config, prefix, source = cluster.client_config, cluster.prefix, cluster.source
    topics_error: HistoryUnavailable | None = None
    if source not in (OFFSETS, POLLING):
        try:
            # Brokers' logs can be merged only with all of the history.
            return _read_topics(cluster, group_id, None if cluster.has_logs else since_ms, now_ms)
        except TopicsMissing:
            if source == HISTORY or prefix != DEFAULT_PREFIX:  # topics with a given prefix must exist
                raise
        except HistoryUnavailable as error:
            if source == HISTORY:
                raise
            topics_error = error
    # A slow import, which other sources do not need.
    from kafka_why.why.live_sources import read_with_live_source

    polls = None if source is None else source == POLLING  # None to poll only if the topic may not be read
    try:
        history, live = read_with_live_source(
            client_config,
            group_id,
            since_ms,
            reading_progress("records"),
            polls=polls,
            follows=cluster.follows,
            notify=show_stderr,
        )
    except (HistoryUnavailable, KafkaError):
        if topics_error is not None:  # prefer it, because its message names groups with similar ids
            raise topics_error from None
        raise
    return _GroupData(history, live=live)


def _read_topics(cluster: _Cluster, group_id: str, since_ms: int | None, now_ms: int) -> _GroupData:
    """Read a group's data from the topics of a coordinator or an observer.

    Raises TopicsMissing or HistoryUnavailable.
    """
    layout = layout_on(cluster.client_config, cluster.prefix)
    if not cluster.follows:
        return _read_history_and_deliveries(cluster.client_config, layout, group_id, since_ms, now_ms)
    from kafka_why.why.live_sources import LiveHistory

    with ExitStack() as stack:
        # Open it before the history is read, so that entries written meanwhile are not lost.
        live = stack.enter_context(closing(LiveHistory(cluster.client_config, layout, group_id)))
        data = _read_history_and_deliveries(cluster.client_config, layout, group_id, since_ms, now_ms)
        stack.pop_all()  # no error, so `live` stays open
    return data._replace(live=live)


def _read_history_and_deliveries(
    client_config: ClientConfig, layout: TopicLayout, group_id: str, since_ms: int | None, now_ms: int
) -> _GroupData:
    """Read the history of a group, and the deliveries of a share group.

    Raises HistoryUnavailable if there is neither.
    """
    read_group_deliveries = partial(read_deliveries, client_config, layout, group_id, since_ms, now_ms)
    try:
        history = read_history(client_config, layout, group_id, since_ms)
    except HistoryUnavailable:
        deliveries = read_group_deliveries()
        if deliveries is None:
            raise
        return _GroupData(history=None, deliveries=deliveries)
    last = history.entries[-1]
    if not isinstance(last, HistoryEntry) or last.group_type != SHARE:
        return _GroupData(history)
    view = latest_view(client_config, layout, group_id)
    members = () if view is None else [member.member_id for member in view.members]
    notes = [] if last.observed else settings_notes(client_config, group_id, view)
    return _GroupData(history, read_group_deliveries(), members, notes)


def _show_kafka(
    group_id: str,
    history: History,
    data: _GroupData,
    now_ms: int,
    since_ms: int | None,
    output: str,
) -> None:
    entries = [event for event in history.entries if isinstance(event, HistoryEntry)]
    _note_left_out(group_id, len(history.entries) - len(entries), whose="RocketMQ's")
    analysis = analyze(
        entries, unread=history.unread, from_start=history.from_start, telemetry=history.telemetry
    )
    report = report_of(group_id, analysis, now_ms, since_ms)
    if history.unnamed is not None:
        report = report_from_logs(report, history.unnamed)
    notes = [*report.notes, *data.notes, *history.notes]
    if data.deliveries is not None:
        members = {*data.members, *(entry.member_id for entry in entries if entry.member_id is not None)}
        notes += non_member_notes(data.deliveries, members)
    _show(replace(report, deliveries=data.deliveries, notes=notes), report_text, output)


def _show_rocketmq(
    group_id: str,
    history: History,
    now_ms: int,
    since_ms: int | None,
    output: str,
    servers: RocketMqServers | None,
) -> None:
    entries = [event for event in history.entries if isinstance(event, RocketMqHistoryEntry)]
    _note_left_out(group_id, len(history.entries) - len(entries), whose="Kafka's")
    report = rocketmq_report(group_id, entries, now_ms, since_ms)
    _show(report if servers is None else with_polls(report, servers), history_and_polls_text, output)


def _note_left_out(group_id: str, number: int, whose: str) -> None:
    """Print a note about entries that are left out, because another group had the id before."""
    if number:
        left_out = f"{number} entries of that time are left out"
        show_stderr(f"Note: {group_id} was the name of a group of {whose} before; {left_out}.")


def _show(report: R, as_text: Callable[[R, Clock], VisibleText], output: str) -> None:
    if output == "json":
        show_json(report)
    elif output == _JSON_LINES:
        show_line({"report": report})
    else:
        show(as_text(report, Clock()))
