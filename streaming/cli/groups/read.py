"""`groups list`, `groups describe`: what there is."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from state.responses import DescribeGroupResponse
from streaming.admin.describe import member_rows, remark, state_row
from streaming.admin.directory import GROUP_TYPE
from streaming.admin.gather import Described, describe_groups, describe_partitions
from streaming.admin.render import group_list, member_table, partition_table, state_table
from streaming.admin.selection import parse_states, parse_types
from streaming.cli.groups.common import (
    Cluster,
    connection_options,
    group_options,
    output_option,
    parsed_by,
    show_json,
    show_table,
    tell,
    tell_errors,
)
from streaming.partitioner import partition_of

Groups = Mapping[str, DescribeGroupResponse]


@click.command("list")
@connection_options
@click.option(
    "--state",
    "states",
    is_flag=False,
    flag_value="",
    metavar="[STATE,...]",
    callback=parsed_by(parse_states),
    help="Tell states too; only groups in one of these states.",
)
@click.option(
    "--type",
    "types",
    is_flag=False,
    flag_value="",
    metavar="[TYPE,...]",
    callback=parsed_by(parse_types),
    help="Tell types too; only groups of one of these types.",
)
@output_option
def list_(cluster: Cluster, states: frozenset[str] | None, types: frozenset[str] | None, output: str) -> None:
    """List the groups, empty ones too.

    Read from the groups topic: the list has all that the coordinator's last committed batch did.
    """
    groups = cluster.groups(states or frozenset(), types or frozenset())
    if output == "json":
        show_json(
            [
                {
                    "group": group.group_id,
                    "type": GROUP_TYPE,
                    "state": group.state,
                    "protocol_type": group.protocol_type or "",
                }
                for group in groups
            ]
        )
        return
    text = group_list(groups, with_type=types is not None, with_state=states is not None)
    if text:
        click.echo(text)


@click.command()
@connection_options
@group_options
@click.option("--offsets", is_flag=True, help="Partitions with offsets and lag (the default).")
@click.option("--members", is_flag=True, help="Members, and how many partitions they have.")
@click.option("--state", is_flag=True, help="The state.")
@click.option("--verbose", is_flag=True, help="More columns: leader epochs, or what members are assigned.")
@output_option
def describe(
    cluster: Cluster,
    named: Sequence[str],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    verbose: bool,
    output: str,
) -> None:
    """Describe groups: their partitions, their members, or their state."""
    if offsets + members + state > 1:
        raise click.UsageError("takes at most one of these options: --members, --offsets, --state")
    with_offsets = not (members or state)
    described = describe_groups(
        cluster.requests, cluster.group_ids(named, all_groups), with_offsets=with_offsets
    )
    tell_errors(described.errors)
    for group_id, group in described.groups.items():
        said = remark(group_id, group.group_state)
        if said is not None:
            tell(said)
    if members:
        _show_members(described.groups, verbose, output)
    elif state:
        _show_states(cluster, described.groups, output)
    else:
        _show_offsets(cluster, described, verbose, output)


def _show_offsets(cluster: Cluster, described: Described, verbose: bool, output: str) -> None:
    rows_of = describe_partitions(cluster.log, described)
    if output == "json":
        show_json(_by_group(described.groups, "partitions", rows_of))
        return
    for rows in rows_of.values():
        if rows:
            show_table(partition_table(rows, verbose=verbose))


def _show_members(groups: Groups, verbose: bool, output: str) -> None:
    rows_of = {group_id: member_rows(group) for group_id, group in groups.items()}
    if output == "json":
        show_json(_by_group(groups, "members", rows_of))
        return
    for rows in rows_of.values():
        if rows:
            show_table(member_table(rows, verbose=verbose))


def _show_states(cluster: Cluster, groups: Groups, output: str) -> None:
    layout = cluster.layout
    rows = [
        state_row(group, layout.requests_topic, partition_of(group_id, layout.request_partitions))
        for group_id, group in groups.items()
    ]
    if output == "json":
        show_json(rows)
        return
    for row in rows:
        if row.state != "Dead":
            show_table(state_table(row))


def _by_group(groups: Groups, what: str, rows_of: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [
        {"group": group_id, "state": group.group_state, what: rows_of[group_id]}
        for group_id, group in groups.items()
    ]
