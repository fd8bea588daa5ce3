"""`group-coordinator state read` and `diff`: the state in the checkpoint, also while the coordinator runs,
and the differences between two states.
"""

import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.sealed_file import ExportedGroup, ExportFile
from cli.data_folder import (
    coordinator_folder,
    data_dir_option,
    opened,
    place_options,
    reported,
    spark_session,
)
from kafka_why.cli.output import configure_logs, show, show_encoded, show_json, show_line, show_stderr
from kafka_why.cli.parameters import WholeNumber
from kafka_why.local_files import make_private_folder
from kafka_why.numbers import is_whole_number, parse_whole_number
from kafka_why.wording import visible_text
from operations.stored.changes import GroupChange, change_text, compare_groups
from operations.stored.frames import answer_json, answer_text, create_views, write_parquet
from operations.stored.rows import GroupRows, StateTable, rows_of
from operations.stored.text import group_text, table_text, time_text
from state.kafka.group import ConfigsOnly
from streaming.service.stored_state.moving import StoredState, read_stored


@click.command()
@data_dir_option("The coordinator may run.")
@place_options
@click.option("--batch", type=WholeNumber(0), help="The state after this batch. Default: the newest one.")
@click.option("--group", "groups", multiple=True, help="Only this group. Can be given several times.")
@click.option(
    "--what", type=click.Choice([str(table) for table in StateTable]), help="Only this table, of all groups."
)
@click.option(
    "--format", "output", type=click.Choice(["table", "jsonl", "json"]), default="table", show_default=True
)
@click.option("--sql", metavar="QUERY", help="Run a query of Spark SQL over the tables, and print its rows.")
@click.option(
    "--parquet",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the tables as Parquet files into this folder, and print nothing.",
)
def read(
    data_dir: Path,
    place: str | None,
    spark_conf: Mapping[str, str],
    batch: int | None,
    groups: tuple[str, ...],
    what: str | None,
    output: str,
    sql: str | None,
    parquet: Path | None,
) -> None:
    """Print the groups as they are in the coordinator's checkpoint."""
    if sum(given is not None for given in (what, sql, parquet)) > 1:
        raise click.UsageError("--what, --sql and --parquet exclude each other")
    configure_logs()
    with reported():
        with opened(data_dir, place, spark_conf) as (checkpoint, spark):
            state = read_stored(checkpoint, spark, batch)
            if sql is not None:
                _print_query(spark, state, groups, sql, output)
                return
        if parquet is not None:
            make_private_folder(parquet)
            counts = write_parquet(parquet, _rows(state, groups))
            listed = ", ".join(f"{count} {table}" for table, count in counts.items())
            show(f"wrote the state after batch {state.batch} to {parquet}: {listed}")
        else:
            _print(state, groups, None if what is None else StateTable(what), output)


def _rows(state: StoredState, groups: Collection[str]) -> Iterator[GroupRows]:
    """Yield the rows of the named groups, or of all groups if none is named, by group id. An id that has only
    settings is not a group.
    """
    config = state.config
    for exported in sorted(state.groups, key=lambda group: group.group_id):
        if not groups or exported.group_id in groups:
            group = exported.decode()
            if not isinstance(group, ConfigsOnly):
                yield rows_of(group, exported.version, config)


def _print(state: StoredState, groups: Collection[str], what: StateTable | None, output: str) -> None:
    found = list(_rows(state, groups))
    rows: list[Any] = found if what is None else [row for group in found for row in group.of(what)]
    if output == "jsonl":
        for row in rows:
            show_line(row)
    elif output == "json":
        _print_json(state, str(what or StateTable.GROUPS), rows)
    else:
        show(
            f"State after batch {state.batch}, {time_text(state.watermark_ms)} UTC by the log: "
            f"{len(found)} groups"
        )
        blocks = [group_text(row) for row in rows] if what is None else [table_text(what, rows)]
        for block in blocks:
            show(visible_text(["", block]))
    for missing in sorted(set(groups) - {group.group.group_id for group in found}):
        show_stderr(f"The state has no group '{missing}'.")


def _print_query(
    spark: SparkSession, state: StoredState, groups: Collection[str], query: str, output: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="group-coordinator-state-") as folder:
        create_views(spark, Path(folder), _rows(state, groups))
        answer = spark.sql(query)
        if output == "table":
            show(answer_text(answer))
            return
        rows = answer_json(answer)
        if output == "jsonl":
            for row in rows:
                show_encoded(row)
        else:
            _print_json(state, "rows", [msgspec.Raw(row.encode()) for row in rows])


def _print_json(state: StoredState, name: str, rows: list[Any]) -> None:
    show_json({"batch": state.batch, "watermark_ms": state.watermark_ms, name: rows})


_PLACE_AT_BATCH = re.compile(r"(?P<place>.+)@(?P<batch>[0-9]+)")
Groups = Mapping[str, ExportedGroup]


class _DiffFailed(click.ClickException):
    exit_code = 2  # as in diff(1), where 1 means that the files differ


class _Source(NamedTuple):
    """A state to compare: an export, or a data folder's state after a batch (None for the newest one)."""

    place: Path
    batch: int | None
    is_export: bool


@click.command()
@click.argument("before")
@click.argument("after")
@data_dir_option("For a BEFORE or AFTER that is a number. The coordinator may run.", exists=False)
@click.option("--group", "groups", multiple=True, help="Only this group. Can be given several times.")
@click.option("--ignore-times", is_flag=True, help="Ignore fields that are times.")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def diff(
    before: str, after: str, data_dir: Path, groups: tuple[str, ...], ignore_times: bool, output: str
) -> None:
    """Print what differs between two states. Exit code: 0 equal, 1 different, 2 an error.

    BEFORE and AFTER are each the number of a batch, a data folder (its newest batch), DIR@BATCH, or a file of
    `state export` or `state backup`.
    """
    configure_logs()
    with reported(_DiffFailed):
        old, new = _load(_source(before, data_dir), _source(after, data_dir))
        changes = _changes(old, new, groups, ignore_times=ignore_times)
    if output == "json":
        show_json({"equal": not changes, "groups": changes})
    else:
        show(visible_text(map(change_text, changes)) or f"{len(old)} groups, no differences")
    raise click.exceptions.Exit(1 if changes else 0)


def _source(given: str, data_dir: Path) -> _Source:
    if is_whole_number(given):
        return _Source(data_dir, _batch(given), is_export=False)
    path = Path(given)
    if path.is_file():
        return _Source(path, None, is_export=True)
    if path.is_dir():
        return _Source(path, None, is_export=False)
    if (at := _PLACE_AT_BATCH.fullmatch(given)) and Path(at["place"]).is_dir():
        return _Source(Path(at["place"]), _batch(at["batch"]), is_export=False)
    raise click.UsageError(f"'{given}' is neither a batch nor a data folder, DIR@BATCH or exported file")


def _batch(text: str) -> int:
    try:
        return parse_whole_number(text)
    except ValueError as error:
        raise click.UsageError(f"a batch: {error}") from error


def _load(*sources: _Source) -> list[Groups]:
    with ExitStack() as stack:
        spark: SparkSession | None = None
        for source in sources:
            if not source.is_export and spark is None:
                coordinator_folder(source.place)
                spark = stack.enter_context(spark_session(source.place / "state.log"))
        return [_groups(source, spark) for source in sources]


def _groups(source: _Source, spark: SparkSession | None) -> Groups:
    if source.is_export:
        return {group.group_id: group for group in ExportFile(source.place).groups()}
    assert spark is not None
    checkpoint = Checkpoint.at(coordinator_folder(source.place))
    return {group.group_id: group for group in read_stored(checkpoint, spark, source.batch).groups}


def _changes(old: Groups, new: Groups, groups: Collection[str], *, ignore_times: bool) -> list[GroupChange]:
    changes = []
    for group_id in sorted({*old, *new}):
        before, after = old.get(group_id), new.get(group_id)
        if (groups and group_id not in groups) or before == after:
            continue
        decoded = [None if group is None else group.decode() for group in (before, after)]
        change = compare_groups(group_id, *decoded, ignore_times=ignore_times)
        if change is not None:
            changes.append(change)
    return changes
