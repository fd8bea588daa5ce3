"""`group-coordinator why`: explains why a group rebalanced."""

import sys
import time
from collections.abc import Callable, Collection, Sequence
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
from kafka.errors import KafkaError
from msgspec.structs import replace

from cli.cluster_options import cluster_options
from cli.logs import configure_logs
from cli.output import show, show_json, tell
from cli.page_link import link, page_url_option
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.layout import DEFAULT_PREFIX
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.escaping import VisibleText, visible_text
from kafka_why.stored_log import Progress
from kafka_why.topic_layout import ClientError, TopicsMissing, layout_on
from kafka_why.why.broker_logs import parse_zone, read_broker_logs
from kafka_why.why.clock import Clock
from kafka_why.why.course import course_of
from kafka_why.why.deliveries.model import DeliveryReport, LoneDeliveries
from kafka_why.why.deliveries.reading import read_since
from kafka_why.why.deliveries.text import alone_text, strangers
from kafka_why.why.folder_history import read_folder
from kafka_why.why.history import History, HistoryUnavailable, latest_view, read_history
from kafka_why.why.logged import alone, groups_text, listed_groups, of_logs, with_records
from kafka_why.why.report import Report, report_of
from kafka_why.why.rocketmq.model import Report as RocketMqReport
from kafka_why.why.rocketmq.report import report as rocketmq_report
from kafka_why.why.rocketmq.text import report_text as rocketmq_text
from kafka_why.why.share_settings import settings_notes
from kafka_why.why.since import parse_since
from kafka_why.why.text import report_text


class _Found(NamedTuple):
    """The history of a group, None of a share group of the brokers. Of a share group what gateways delivered,
    the members that it has now, and what else there is to say. `unnamed` is the number of members whose ids
    brokers' logs lack. `is_log_alone`: these are the only evidence.
    """

    history: History | None
    deliveries: DeliveryReport | None = None
    members: Collection[str] = ()
    notes: Sequence[str] = ()
    unnamed: int = 0
    is_log_alone: bool = False


R = TypeVar("R", Report, RocketMqReport, LoneDeliveries)
_SHARE = "share"
HISTORY, OFFSETS = "history", "offsets"


@click.command()
@click.argument("group_id", metavar="GROUP", required=False)
@cluster_options(required=False)
@click.option(
    "--from-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Read the folder of `observe --output-dir` instead of topics.",
)
@click.option(
    "--source",
    type=click.Choice((HISTORY, OFFSETS)),
    help="The topics of a coordinator of this project or of `observe`, which have reasons; or "
    "__consumer_offsets of the cluster's own coordinator. Default: the first that has the group.",
)
@click.option(
    "--broker-log",
    "broker_logs",
    multiple=True,
    metavar="FILE",
    help="Log of a broker, also compressed by gzip, - for the standard input; may be given again. It has the "
    "reason and the beginning of each rebalance. Needs no cluster; without GROUP it lists the groups.",
)
@click.option(
    "--log-timezone",
    metavar="ZONE",
    help="Zone of times in --broker-log that name none: Europe/Berlin, UTC, +02:00. Default: this machine's.",
)
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
def why(
    group_id: str | None,
    client_config: ClientConfig | None,
    from_dir: Path | None,
    source: str | None,
    broker_logs: tuple[str, ...],
    log_timezone: str | None,
    since: str | None,
    output: str,
    page_url: str | None,
    prefix: str,
) -> None:
    """Explain a group's rebalances: when, caused by which member, how long, and which partitions moved.

    The clients of a RocketMQ group rebalance by themselves. For such a group the report has the clients that
    came and went, the connections that the coordinator notified, and the client ids on several connections.

    Of a share group the report also has what became of the records that gateways delivered to its members,
    of the last day unless --since says otherwise, and the records that may be poison.

    Nothing needs to be set up before: where no coordinator of this project and no `observe` has written the
    group's history, the command makes it of the records in the cluster's own __consumer_offsets, which go
    back hours or days. It needs READ on that topic, joins no group and writes nothing.
    """
    configure_logs()
    now_ms = time.time_ns() // 1_000_000
    since_ms = _parse_since(since, now_ms)
    zone = _parse_zone(log_timezone)
    if group_id is None:
        _list_groups(broker_logs, zone, since_ms, output)
        return
    _check_sources(client_config, from_dir, source, broker_logs)
    try:
        if client_config is not None:
            found = _in_cluster(client_config, prefix, source, group_id, since_ms, now_ms, bool(broker_logs))
        else:
            found = _Found(None if from_dir is None else read_folder(from_dir, group_id))
        if broker_logs:
            found = _with_logs(found, broker_logs, group_id, zone)
    except (ClientError, HistoryUnavailable) as error:
        raise click.ClickException(str(error)) from error
    except (KafkaError, OSError, ValueError) as error:
        where = client_config or from_dir or ", ".join(broker_logs)
        raise click.ClickException(f"cannot read from {where}: {error}") from error
    history = found.history
    if history is None:
        assert found.deliveries is not None, "there is one of both"
        _show(LoneDeliveries(group_id, found.deliveries), alone_text, output)
    elif isinstance(history.entries[-1], RocketMqHistoryEntry):
        _show_rocketmq(group_id, history, now_ms, since_ms, output)
    else:
        _show_kafka(group_id, history, found, now_ms, since_ms, output)
    if page_url is not None and output == "text":
        show(visible_text(["", link(page_url, group_id)]))


def _in_cluster(
    client_config: ClientConfig,
    prefix: str,
    source: str | None,
    group_id: str,
    since_ms: int | None,
    now_ms: int,
    has_logs: bool,
) -> _Found:
    """Read what the cluster has. Brokers' logs need all records of the group, and can do without."""
    try:
        return _found(client_config, prefix, source, group_id, None if has_logs else since_ms, now_ms)
    except HistoryUnavailable as error:
        if not has_logs:
            raise
        return _Found(None, notes=[f"there are no records: {error}"])


def _check_sources(
    client_config: ClientConfig | None, from_dir: Path | None, source: str | None, broker_logs: Sequence[str]
) -> None:
    """Raises UsageError if there is no evidence, or evidence of two clusters."""
    if client_config is not None and from_dir is not None:
        raise click.UsageError("takes one of these options: --bootstrap-servers, --from-dir")
    if client_config is None and from_dir is None and not broker_logs:
        raise click.UsageError("takes one of these options: --bootstrap-servers, --from-dir, --broker-log")
    if from_dir is not None and source is not None:
        raise click.UsageError("--source is for topics, not for --from-dir")


def _list_groups(files: Sequence[str], zone: tzinfo | None, since_ms: int | None, output: str) -> None:
    """Print the groups in brokers' logs."""
    if not files:
        raise click.UsageError("Missing argument 'GROUP'. Only --broker-log lists groups.")
    try:
        logs = read_broker_logs(files, None, zone, _progress("bytes"))
    except OSError as error:
        raise click.ClickException(f"cannot read: {error}") from error
    groups = listed_groups(logs, since_ms)
    if output == "json":
        show_json(groups)
    else:
        show(groups_text(groups, Clock()))
    for note in logs.notes(files, zone):
        tell(f"Note: {note}.")


def _with_logs(found: _Found, files: Sequence[str], group_id: str, zone: tzinfo | None) -> _Found:
    """Add what brokers' logs say of a group. Raises HistoryUnavailable if nothing says anything."""
    logs = read_broker_logs(files, group_id, zone, _progress("bytes"))
    notes = logs.notes(files, zone)
    if found.history is None and (logs.events or found.deliveries is None):
        history, said, unnamed = alone(logs, group_id, notes)
        return found._replace(
            history=history, notes=[*found.notes, *said], unnamed=unnamed, is_log_alone=True
        )
    if found.history is None:
        return found
    history, said, _ = with_records(found.history, logs, notes)
    return found._replace(history=history, notes=[*found.notes, *said])


def _parse_zone(text: str | None) -> tzinfo | None:
    try:
        return None if text is None else parse_zone(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--log-timezone") from error


def _found(
    client_config: ClientConfig,
    prefix: str,
    source: str | None,
    group_id: str,
    since_ms: int | None,
    now_ms: int,
) -> _Found:
    """Raises HistoryUnavailable if there is neither a history nor deliveries."""
    unknown: HistoryUnavailable | None = None
    if source != OFFSETS:
        try:
            return _in_history(client_config, prefix, group_id, since_ms, now_ms)
        except TopicsMissing:
            if source == HISTORY or prefix != DEFAULT_PREFIX:  # who gives a prefix has topics with it
                raise
        except HistoryUnavailable as error:
            if source == HISTORY:
                raise
            unknown = error
    from kafka_why.why.offsets_topic import read_offsets_topic  # as many modules as the rest of a report

    try:
        history, notes = read_offsets_topic(client_config, group_id, since_ms, _progress())
    except (HistoryUnavailable, KafkaError):
        if unknown is not None:  # that names groups with a similar id
            raise unknown from None
        raise
    return _Found(history, notes=notes)


def _progress(unit: str = "records") -> Progress:
    """Return what reports long reading on a terminal, each second."""
    if not sys.stderr.isatty():
        return lambda *_: None
    next_s = time.monotonic() + 1

    def report(read: int, of: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + 1
            tell(f"{read:,} of {of:,} {unit} read")

    return report


def _in_history(
    client_config: ClientConfig, prefix: str, group_id: str, since_ms: int | None, now_ms: int
) -> _Found:
    """Read the topics of a coordinator or an observer. Raises TopicsMissing, and HistoryUnavailable."""
    layout = layout_on(client_config, prefix)
    deliveries = partial(read_since, client_config, layout, group_id, since_ms, now_ms)
    try:
        history = read_history(client_config, layout, group_id, since_ms)
    except HistoryUnavailable:
        found = deliveries()
        if found is None:
            raise
        return _Found(None, found)
    last = history.entries[-1]
    if not isinstance(last, HistoryEntry) or last.group_type != _SHARE:
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
    course = course_of(
        ours, unread=history.unread, from_start=history.from_start, telemetry=history.telemetry
    )
    report = report_of(group_id, course, now_ms, since_ms)
    if found.is_log_alone:
        report = of_logs(report, found.unnamed)
    notes = [*report.notes, *found.notes]
    if found.deliveries is not None:
        known = {*found.members, *(entry.member_id for entry in ours if entry.member_id is not None)}
        notes += strangers(found.deliveries, known)
    shown = replace(report, deliveries=found.deliveries, notes=notes)
    _show(shown, report_text, output)


def _show_rocketmq(group_id: str, history: History, now_ms: int, since_ms: int | None, output: str) -> None:
    ours = [event for event in history.entries if isinstance(event, RocketMqHistoryEntry)]
    _note_left_out(group_id, len(history.entries) - len(ours), "Kafka's")
    _show(rocketmq_report(group_id, ours, now_ms, since_ms), rocketmq_text, output)


def _note_left_out(group_id: str, entries: int, whose: str) -> None:
    """Print how many entries the report leaves out because the group id had the other protocol then."""
    if entries:
        left_out = f"{entries} entries of that time are left out"
        tell(f"Note: {group_id} was the name of a group of {whose} before; {left_out}.")


def _show(shown: R, as_text: Callable[[R, Clock], VisibleText], output: str) -> None:
    if output == "json":
        show_json(shown)
    else:
        show(as_text(shown, Clock()))
