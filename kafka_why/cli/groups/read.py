"""`groups list` and `groups describe`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from msgspec import structs

from kafka_why.cli.groups.common import (
    Cluster,
    connection_options,
    group_options,
    output_option,
    show_errors,
    show_table,
)
from kafka_why.cli.output import show, show_json, show_stderr
from kafka_why.cli.parameters import ParsedOption, link, page_url_option
from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.groups.describe import (
    PartitionRow,
    lag_summary,
    member_rows,
    state_remark,
    state_row,
    with_lags,
)
from kafka_why.groups.gather import DescribedGroups, describe_groups, describe_partitions
from kafka_why.groups.list_groups import parse_protocols, parse_states, parse_types, select_groups
from kafka_why.groups.render import group_list, member_table, partition_table, state_table
from kafka_why.groups.rocketmq import (
    RocketMqRow,
    client_table,
    offsets_remark,
    rocketmq_remarks,
    rocketmq_row,
    rocketmq_state_table,
    topic_table,
)
from kafka_why.wording import VisibleText

Groups = Mapping[str, GroupSnapshot]
RowsOf = Mapping[str, Sequence[PartitionRow]]


class _DescribeOutput(NamedTuple):
    """The output of `groups describe`: rows for JSON, tables for text."""

    rows: Sequence[Any]
    tables: Sequence[VisibleText]


def _column_option(
    option: str, parameter: str, parse: Callable[[str], Any], text: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option that shows a column and, if it has a value, also filters the rows by it."""
    return click.option(
        option,
        parameter,
        is_flag=False,
        flag_value="",
        metavar=f"[{option.removeprefix('--').upper()},...]",
        type=ParsedOption(parameter, parse),
        help=text,
    )


@click.command("list")
@connection_options
@_column_option(
    "--state", "states", parse_states, "Show states too; list only groups in one of these states."
)
@_column_option("--type", "types", parse_types, "Show types too; list only groups of one of these types.")
@_column_option(
    "--protocol",
    "protocols",
    parse_protocols,
    "Show protocol types too; list only groups of one of these, such as connect.",
)
@output_option
def list_(
    cluster: Cluster,
    states: frozenset[str] | None,
    types: frozenset[str] | None,
    protocols: frozenset[str] | None,
    output: str,
) -> None:
    """List the groups of every protocol type, including empty ones.

    The list comes from the groups topic and includes everything up to the coordinator's last committed batch.
    If the cluster has neither a coordinator of this project nor `observe`, the brokers list their own groups.
    """
    any_value = frozenset[str]()  # an empty set selects all groups
    groups = select_groups(
        cluster.list_rows(), states or any_value, types or any_value, protocols or any_value
    )
    if output == "json":
        show_json(groups)
        return
    text = group_list(
        groups,
        with_type=types is not None,
        with_state=states is not None,
        with_protocol=protocols is not None,
    )
    if text:
        show(text)


@click.command()
@connection_options
@group_options
@click.option("--offsets", is_flag=True, help="Partitions with offsets and lag (the default).")
@click.option("--members", is_flag=True, help="Members with their numbers of partitions.")
@click.option("--state", is_flag=True, help="The state, and what the group waits for.")
@click.option("--verbose", is_flag=True, help="More columns: leader epochs, assignments, or epochs.")
@click.option(
    "--lag-seconds",
    is_flag=True,
    help="Show also the lag in time of each partition, member or group: the time from the record at the "
    "committed offset to the newest record.",
)
@page_url_option
@output_option
def describe(
    cluster: Cluster,
    named: Sequence[str],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
    lag_seconds: bool,
    page_url: str | None,
    output: str,
) -> None:
    """Describe groups: their partitions, their members, or their state.

    A RocketMQ group is described from the groups topic, and in full unless an option is given. On a
    cluster without a coordinator of this project, or `observe`, descriptions come from the cluster's own
    __consumer_offsets.
    """
    if offsets + members + state > 1:
        raise click.UsageError("takes at most one of these options: --members, --offsets, --state")
    with_offsets = not (members or state)
    groups = cluster.chosen_groups(named, all_groups, rocketmq=True)
    described = describe_groups(cluster.describer, groups, with_offsets=with_offsets or lag_seconds)
    _show_remarks(described)
    rocketmq = _rocketmq_rows(cluster, described.rocketmq, with_offsets=with_offsets)
    rows_of: RowsOf = {}
    if with_offsets or lag_seconds:
        rows_of = describe_partitions(cluster.log, described, with_lag_seconds=lag_seconds)
    if members:
        described_output = _members_output(described.groups, rows_of, verbose=verbose)
    elif state:
        described_output = _states_output(cluster, described.groups, rows_of, verbose=verbose)
    else:
        described_output = _offsets_output(described.groups, rows_of, verbose=verbose)
    if output == "json":
        show_json([*described_output.rows, *rocketmq])
        return
    formats = _rocketmq_formats(offsets=offsets, members=members, state=state)
    rocketmq_tables = [format_table(row) for row in rocketmq for format_table in formats]
    for table in [*described_output.tables, *rocketmq_tables]:
        show_table(table)
    if page_url is not None:
        _show_links(page_url, [] if all_groups else [*described.groups, *described.rocketmq])


def _show_links(page_url: str, group_ids: Sequence[str]) -> None:
    """Print the address of each group on the page, or of the list of groups if `group_ids` is empty."""
    show_stderr("")
    for address in [link(page_url, group_id) for group_id in group_ids] or [link(page_url)]:
        show_stderr(address)


def _show_remarks(described: DescribedGroups) -> None:
    show_errors(described.errors)
    for group_id, group in described.groups.items():
        text = state_remark(group_id, group.state, group.group_type)
        if text is not None:
            show_stderr(text)


def _offsets_output(groups: Groups, rows_of: RowsOf, *, verbose: bool) -> _DescribeOutput:
    tables = [partition_table(rows, verbose=verbose) for rows in rows_of.values() if rows]
    return _DescribeOutput(_by_group(groups, "partitions", rows_of), tables)


def _members_output(groups: Groups, lags: RowsOf, *, verbose: bool) -> _DescribeOutput:
    rows_of = {group_id: member_rows(group) for group_id, group in groups.items()}
    if lags:  # if they were requested
        rows_of = {group_id: with_lags(rows, lags[group_id]) for group_id, rows in rows_of.items()}
    tables = [member_table(rows, verbose=verbose) for rows in rows_of.values() if rows]
    return _DescribeOutput(_by_group(groups, "members", rows_of), tables)


def _states_output(cluster: Cluster, groups: Groups, lags: RowsOf, *, verbose: bool) -> _DescribeOutput:
    rows = [state_row(group, *cluster.storage_of(group_id)) for group_id, group in groups.items()]
    if lags:  # if they were requested
        rows = [structs.replace(row, behind=lag_summary(lags[row.group])) for row in rows]
    return _DescribeOutput(rows, [state_table(row, verbose=verbose) for row in rows if row.state != DEAD])


def _by_group(groups: Groups, key: str, rows_of: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return JSON objects of the groups, each with its rows under `key`."""
    return [
        {"group": group_id, "state": group.state, key: rows_of[group_id]}
        for group_id, group in groups.items()
    ]


def _rocketmq_rows(cluster: Cluster, group_ids: Sequence[str], *, with_offsets: bool) -> list[RocketMqRow]:
    """Return the rows of RocketMQ's groups, and print remarks about them."""
    groups = cluster.answered_groups() if group_ids else []
    views = {g.group_id: g for g in groups if isinstance(g, RocketMqSnapshot)}
    # A group may have ended since it was found to be of RocketMQ.
    ended_ids = [group_id for group_id in group_ids if group_id not in views]
    show_errors([f"Group '{g}' is a RocketMQ group and is no longer on the groups topic." for g in ended_ids])
    rows = [rocketmq_row(views[group_id]) for group_id in group_ids if group_id in views]
    for row in rows:
        for text in rocketmq_remarks(row):
            show_stderr(text)
        if with_offsets:
            show_stderr(offsets_remark(row.group))
    return rows


def _rocketmq_formats(
    *, offsets: bool, members: bool, state: bool
) -> list[Callable[[RocketMqRow], VisibleText]]:
    """Return the functions that format a RocketMQ group, for these options of the command."""
    if offsets:
        return []
    if members:
        return [client_table]
    return [rocketmq_state_table] if state else [rocketmq_state_table, topic_table, client_table]
