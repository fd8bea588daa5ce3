"""`groups reset-offsets`: sets new offsets for a group without members."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import click

from cli.groups.change import CoordinatorCluster
from kafka_why.cli.groups.common import (
    connection_options,
    failure,
    group_options,
    output_option,
    show_errors,
    show_table,
)
from kafka_why.cli.output import show_data, show_json, show_stderr
from kafka_why.cli.parameters import INT64, ParsedOption
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.gather import LogOffsets
from kafka_why.groups.list_groups import TopicChoice, parse_datetime_ms, parse_duration_ms, parse_topic
from kafka_why.groups.render import ResetRow, error_text, reset_table
from kafka_why.now import now_ms
from operations.admin.plan_file import PlanFileError, export_plan, read_plan
from operations.admin.requests import GroupRequests
from operations.admin.reset import (
    FromFile,
    ResetError,
    Scenario,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    prepare_reset,
)

Plans = Mapping[str, Mapping[TopicPartition, int]]
"""The new offsets of partitions, by group id."""

_SCENARIOS = (
    "--to-earliest, --to-latest, --to-current, --to-offset, "
    "--shift-by, --to-datetime, --by-duration, --from-file"
)

_SCENARIO_OF: Mapping[str, Callable[[Any], Scenario]] = {
    "to_earliest": lambda _: ToEarliest(),
    "to_latest": lambda _: ToLatest(),
    "to_current": lambda _: ToCurrent(),
    "to_offset": ToOffset,
    "shift_by": ShiftBy,
    "to_datetime_ms": ToTime,
    "by_duration_ms": lambda ago_ms: ToTime(now_ms() - ago_ms),
}
"""For each option except --from-file: a function from the option's value to its scenario."""


@click.command("reset-offsets")
@connection_options
@group_options
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,P]",
    type=ParsedOption("TOPIC", parse_topic),
    help="A topic, or partitions of it; repeatable.",
)
@click.option("--all-topics", is_flag=True, help="All partitions that the group has offsets for.")
@click.option("--to-earliest", is_flag=True, help="To the first offset of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option(
    "--to-current", is_flag=True, help="To the committed offset, or to the end of the log if there is none."
)
@click.option("--to-offset", type=INT64, metavar="OFFSET", help="To this offset.")
@click.option("--shift-by", type=INT64, metavar="N", help="Forward by N, or back if N is negative.")
@click.option(
    "--to-datetime",
    "to_datetime_ms",
    metavar="YYYY-MM-DDTHH:mm:SS.sss",
    type=ParsedOption("TIME", parse_datetime_ms),
    help="To the first record since this time; UTC unless an offset follows.",
)
@click.option(
    "--by-duration",
    "by_duration_ms",
    metavar="PnDTnHnMnS",
    type=ParsedOption("DURATION", parse_duration_ms),
    help="To the first record since this long ago.",
)
@click.option(
    "--from-file",
    type=click.File("rb"),
    help="To the offsets in a CSV file, as --export writes it.",
)
@click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default).")
@click.option("--execute", is_flag=True, help="Set the new offsets.")
@click.option("--export", "as_csv", is_flag=True, help="Show the new offsets as CSV.")
@output_option
def reset_offsets(
    cluster: CoordinatorCluster,
    named: Sequence[str],
    all_groups: bool,
    topics: Sequence[TopicChoice],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    as_csv: bool,
    output: str,
    **scenarios: Any,
) -> None:
    """Reset the offsets of groups that have no members.

    Give exactly one scenario, and --topic or --all-topics unless the scenario is --from-file. The command
    plans all groups before it changes the first.
    """
    scenario = _parse_scenario(scenarios, named)
    _check_scope(scenario, topics, all_topics)
    if dry_run and execute:
        raise click.UsageError("only accepts one of --execute and --dry-run")
    if not (dry_run or execute):
        show_stderr("WARN: No action will be performed as the --execute option is missing.")
    groups = cluster.chosen_groups(named, all_groups)
    try:
        prepared, errors = prepare_reset(
            cluster.requests, cluster.log, groups, scenario, None if all_topics else topics
        )
    except ResetError as error:
        raise failure(str(error)) from error
    show_errors(errors)
    for plan in prepared.values():
        for warning in plan.warnings:
            show_stderr(f"WARN: {warning}")
    plans: dict[str, dict[TopicPartition, int]] = {g: p.offsets for g, p in prepared.items()}
    refusals = _commit(cluster.requests, cluster.log, plans) if execute else []
    show_errors(refusals)
    # As in Kafka's tool, the CSV lines have no group if the user names exactly one.
    _show_plans(plans, as_csv, output, with_group=len(named) != 1)
    if refusals:
        raise click.exceptions.Exit(1)


def _parse_scenario(scenarios: Mapping[str, Any], named: Sequence[str]) -> Scenario:
    """Return the scenario of the only option in `scenarios` that the user gave. Raises UsageError."""
    chosen = [name for name, value in scenarios.items() if value is not None and value is not False]
    if len(chosen) != 1:
        raise click.UsageError(f"requires exactly one of the following scenarios: {_SCENARIOS}")
    (name,) = chosen
    if name == "from_file":
        return _read_plan_file(scenarios[name], named)
    return _SCENARIO_OF[name](scenarios[name])


def _read_plan_file(file: IO[bytes], named: Sequence[str]) -> FromFile:
    try:
        return FromFile(read_plan(file, named))
    except PlanFileError as error:
        raise click.UsageError(str(error)) from error


def _check_scope(scenario: Scenario, topics: Sequence[TopicChoice], all_topics: bool) -> None:
    """Raise UsageError unless exactly one of --topic and --all-topics is given.

    A plan file names its partitions itself, as in Kafka's tool.
    """
    if isinstance(scenario, FromFile):
        return
    if not (topics or all_topics):
        raise click.UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    if topics and all_topics:
        raise click.UsageError("only accepts one of --topic and --all-topics")


def _commit(
    requests: GroupRequests, log: LogOffsets, plans: dict[str, dict[TopicPartition, int]]
) -> list[str]:
    """Commit the plans. Remove the refused offsets from `plans`, and return messages about the refusals."""
    refusals = []
    topic_ids = log.topic_ids({topic for offsets in plans.values() for topic, _ in offsets})
    outcomes = requests.commit_offsets(plans, topic_ids)
    for group_id, offsets in plans.items():
        errors = {p: error for p, error in outcomes[group_id].items() if error is not ErrorCode.NONE}
        for partition in errors:
            del offsets[partition]
        refusals += [
            f"{count} offsets of group '{group_id}' were not reset: {_refusal(error)}."
            for error, count in sorted(Counter(errors.values()).items())
        ]
    return refusals


def _refusal(error: ErrorCode) -> str:
    if error is ErrorCode.UNKNOWN_MEMBER_ID:
        return f"{error.name}: members have joined the group meanwhile"
    return error_text(error.name)


def _show_plans(plans: Plans, as_csv: bool, output: str, *, with_group: bool) -> None:
    rows = [
        ResetRow(group=group_id, topic=topic, partition=partition, new_offset=offset)
        for group_id, offsets in sorted(plans.items())
        for (topic, partition), offset in sorted(offsets.items())
    ]
    if as_csv:
        show_data(export_plan(plans, with_group=with_group))
    elif output == "json":
        show_json(rows)
    elif rows:
        show_table(reset_table(rows))
