"""`group-coordinator state diff`: what differs between two states."""

import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.export_file import ExportedGroup, ExportFile
from cli.data_folder import data_dir_option
from cli.state.common import coordinator_folder, reported, spark_session
from kafka_why.cli.output import configure_logs, show, show_json
from kafka_why.escaping import visible_text
from kafka_why.numbers import is_whole_number, parse_whole_number
from operations.stored.changes import GroupChange, change_text, compare_groups
from streaming.service.stored_state.reading import read_stored

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
