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

from kafka_why.cli.output import configure_logs, reading_progress, show, show_json, show_line, show_stderr
from kafka_why.cli.parameters import (
    BrokerLogOptions,
    as_object,
    broker_log_options,
    cluster_options,
    link,
    list_groups,
    page_url_option,
    read_logs,
)
from kafka_why.cli.rocketmq_cluster import beside_polls_text, explain_polled, namesrv_options, with_polls
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.kafka.history import SHARE, HistoryEntry
from kafka_why.contract.layout import DEFAULT_PREFIX, TopicLayout
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.now import now_ms
from kafka_why.topic_reader import ClientError, TopicsMissing, layout_on
from kafka_why.why.broker_logs import history_from_logs, history_with_logs, report_from_logs
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
from kafka_why.wording import Clock, VisibleText, parse_since, visible_text


class _Found(NamedTuple):
    """The data found about a group."""

    history: History | None  # None for a share group of the brokers
    deliveries: DeliveryReport | None = None  # through gateways, to a share group
    members: Collection[str] = ()  # present ones of a share group
    notes: Sequence[str] = ()
    live: LiveSource | None = None  # if the group is followed


@dataclass(frozen=True, slots=True)
class _Output:
    output: str
    page_url: str | None
    servers: RocketMqServers | None  # a RocketMQ cluster to poll


class _Cluster(NamedTuple):
    """A cluster to read."""

    client_config: ClientConfig
    prefix: str
    source: str | None  # None: the first source that has the group
    follows: bool
    has_logs: bool  # brokers' logs are added


R = TypeVar("R", Report, RocketMqReport, LoneDeliveries)
_NO_HISTORY = History([], frozenset(), from_start=True, records_read=0)
HISTORY, OFFSETS, POLLING = "history", "offsets", "polling"
_LINES = "lines"  # an output of one JSON document a line


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
@broker_log_options
@click.option(
    "--since",
    metavar="TIME|DURATION",
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
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@as_object(BrokerLogOptions, "logs")
@as_object(_Output, "shown")
def why(
    group_id: str | None,
    client_config: ClientConfig | None,
    from_dir: Path | None,
    source: str | None,
    follow: bool,
    logs: BrokerLogOptions,
    since: str | None,
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
    that they hold, and their lag. With --bootstrap-servers, too, that follows the group's history.
    """
    configure_logs()
    called_ms = now_ms()
    since_ms = _parse_since(since, called_ms)
    if group_id is None:
        list_groups(logs, since_ms, shown.output)
        return
    _check_sources(client_config, from_dir, source, logs, follow=follow)
    try:
        if client_config is not None:
            cluster = _Cluster(client_config, prefix, source, follows=follow, has_logs=bool(logs.files))
            found = _in_cluster(cluster, group_id, since_ms, called_ms)
        else:
            found = _Found(None if from_dir is None else read_folder(from_dir, group_id))
        if logs.files:
            found = _with_logs(found, logs, group_id)
    except (ClientError, HistoryUnavailable) as error:
        raise click.ClickException(str(error)) from error
    except (KafkaError, OSError, ValueError) as error:
        where = client_config or from_dir or ", ".join(logs.files)
        raise click.ClickException(f"cannot read from {where}: {error}") from error
    output = _LINES if follow and shown.output == "json" else shown.output
    _show_found(group_id, found, called_ms, since_ms, output, shown.servers)
    if shown.page_url is not None and output == "text":
        show(visible_text(["", link(shown.page_url, group_id)]))
    if found.live is not None:
        _follow(found.history or _NO_HISTORY, since_ms, found.live, output)


def _check_sources(
    client_config: ClientConfig | None,
    from_dir: Path | None,
    source: str | None,
    logs: BrokerLogOptions,
    *,
    follow: bool,
) -> None:
    if client_config is not None and from_dir is not None:
        raise click.UsageError("takes one of these options: --bootstrap-servers, --from-dir")
    if client_config is None and from_dir is None and not logs.files:
        raise click.UsageError("takes one of these options: --bootstrap-servers, --from-dir, --broker-log")
    if client_config is None and (source is not None or follow):
        raise click.UsageError("--source and --follow need --bootstrap-servers")
    if logs.files and follow:
        raise click.UsageError("--follow does not go with --broker-log")


def _with_logs(found: _Found, logs: BrokerLogOptions, group_id: str) -> _Found:
    read, notes = read_logs(logs, group_id)
    if found.history is None and (read.events or found.deliveries is None):
        return found._replace(history=history_from_logs(read, group_id, notes))
    if found.history is None:
        return found
    return found._replace(history=history_with_logs(found.history, read, notes))


def _show_found(
    group_id: str,
    found: _Found,
    now_ms: int,
    since_ms: int | None,
    output: str,
    servers: RocketMqServers | None,
) -> None:
    history = found.history
    if history is None:
        assert found.deliveries is not None, "a group is found by its history or its deliveries"
        _show(LoneDeliveries(group_id, found.deliveries), lone_deliveries_text, output)
    elif not history.entries:
        show_stderr(f"Nothing is known of members of group {group_id} yet.")
    elif isinstance(history.entries[-1], RocketMqHistoryEntry):
        _show_rocketmq(group_id, history, now_ms, since_ms, output, servers)
    else:
        _show_kafka(group_id, history, found, now_ms, since_ms, output)


def _follow(history: History, since_ms: int | None, live: LiveSource, output: str) -> None:
    from kafka_why.why.live_sources import Follower

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    follower = Follower(history, since_ms, live, show, show_line if output == _LINES else None)
    if output == "text":
        show()
    with suppress(KeyboardInterrupt), closing(live):
        follower.run(threading.Event())


def _in_cluster(cluster: _Cluster, group_id: str, since_ms: int | None, now_ms: int) -> _Found:
    try:
        return _found(cluster, group_id, since_ms, now_ms)
    except HistoryUnavailable as error:
        if not cluster.has_logs:
            raise
        return _Found(None, notes=[f"there are no records: {error}"])


def _found(cluster: _Cluster, group_id: str, since_ms: int | None, now_ms: int) -> _Found:
    """Read the history or the deliveries of a group. Raises HistoryUnavailable."""
    client_config, prefix, source = cluster.client_config, cluster.prefix, cluster.source
    unknown: HistoryUnavailable | None = None
    if source not in (OFFSETS, POLLING):
        try:
            # Brokers' logs are merged with records without gaps.
            return _in_history(cluster, group_id, None if cluster.has_logs else since_ms, now_ms)
        except TopicsMissing:
            if source == HISTORY or prefix != DEFAULT_PREFIX:  # topics with a given prefix must exist
                raise
        except HistoryUnavailable as error:
            if source == HISTORY:
                raise
            unknown = error
    from kafka_why.why.live_sources import (
        read_with_live_source,  # a slow import, which other reports do not need
    )

    polls = None if source is None else source == POLLING
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
        if unknown is not None:  # its message names groups with similar ids
            raise unknown from None
        raise
    return _Found(history, live=live)


def _in_history(cluster: _Cluster, group_id: str, since_ms: int | None, now_ms: int) -> _Found:
    """Read the topics of a coordinator or an observer. Raises TopicsMissing or HistoryUnavailable."""
    layout = layout_on(cluster.client_config, cluster.prefix)
    if not cluster.follows:
        return _in_topics(cluster.client_config, layout, group_id, since_ms, now_ms)
    from kafka_why.why.live_sources import LiveHistory

    with ExitStack() as stack:
        # Opened first, so that entries written during the read are not lost.
        live = stack.enter_context(closing(LiveHistory(cluster.client_config, layout, group_id)))
        found = _in_topics(cluster.client_config, layout, group_id, since_ms, now_ms)
        stack.pop_all()
    return found._replace(live=live)


def _in_topics(
    client_config: ClientConfig, layout: TopicLayout, group_id: str, since_ms: int | None, now_ms: int
) -> _Found:
    deliveries = partial(read_deliveries, client_config, layout, group_id, since_ms, now_ms)
    try:
        history = read_history(client_config, layout, group_id, since_ms)
    except HistoryUnavailable:
        found = deliveries()
        if found is None:
            raise
        return _Found(None, found)
    last = history.entries[-1]
    if not isinstance(last, HistoryEntry) or last.group_type != SHARE:
        return _Found(history)
    view = latest_view(client_config, layout, group_id)
    members = () if view is None else [member.member_id for member in view.members]
    notes = [] if last.observed else settings_notes(client_config, group_id, view)
    return _Found(history, deliveries(), members, notes)


def _parse_since(text: str | None, now_ms: int) -> int | None:
    if text is None:
        return None
    try:
        return parse_since(text, now_ms)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error


def _show_kafka(
    group_id: str,
    history: History,
    found: _Found,
    now_ms: int,
    since_ms: int | None,
    output: str,
) -> None:
    ours = [event for event in history.entries if isinstance(event, HistoryEntry)]
    _note_left_out(group_id, len(history.entries) - len(ours), "RocketMQ's")
    analysis = analyze(
        ours, unread=history.unread, from_start=history.from_start, telemetry=history.telemetry
    )
    report = report_of(group_id, analysis, now_ms, since_ms)
    if history.unnamed is not None:
        report = report_from_logs(report, history.unnamed)
    notes = [*report.notes, *found.notes, *history.notes]
    if found.deliveries is not None:
        known = {*found.members, *(entry.member_id for entry in ours if entry.member_id is not None)}
        notes += non_member_notes(found.deliveries, known)
    shown = replace(report, deliveries=found.deliveries, notes=notes)
    _show(shown, report_text, output)


def _show_rocketmq(
    group_id: str,
    history: History,
    now_ms: int,
    since_ms: int | None,
    output: str,
    servers: RocketMqServers | None,
) -> None:
    ours = [event for event in history.entries if isinstance(event, RocketMqHistoryEntry)]
    _note_left_out(group_id, len(history.entries) - len(ours), "Kafka's")
    report = rocketmq_report(group_id, ours, now_ms, since_ms)
    _show(report if servers is None else with_polls(report, servers), beside_polls_text, output)


def _note_left_out(group_id: str, entries: int, whose: str) -> None:
    if entries:
        # The group id then belonged to a group of the other protocol.
        left_out = f"{entries} entries of that time are left out"
        show_stderr(f"Note: {group_id} was the name of a group of {whose} before; {left_out}.")


def _show(shown: R, as_text: Callable[[R, Clock], VisibleText], output: str) -> None:
    if output == "json":
        show_json(shown)
    elif output == _LINES:
        show_line({"report": shown})
    else:
        show(as_text(shown, Clock()))
