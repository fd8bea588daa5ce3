"""The subcommands of `group-coordinator state`: `read` shows the state in the checkpoint, also while the
coordinator runs; `export`, `import`, `backup` and `rollback` save, move and revert it.
"""

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.sealed_file import ExportFile
from cli.coordinator_parameters import (
    CHECKPOINT_OPTION,
    SHARDS,
    STATE_PARTITIONS,
    checkpoint_options,
    cluster_or_embedded,
    coordinator_folder,
    data_dir_option,
    open_checkpoint,
    servers_option,
    spark_session,
)
from kafka_why.cli.output import show, show_encoded, show_json, show_line, show_stderr
from kafka_why.cli.parameters import WholeNumber
from kafka_why.connections.client_config import ClientConfig
from kafka_why.errors import UserFacingError
from kafka_why.local_files import ServiceFolder
from kafka_why.wording import visible_text
from operations.stored.frames import answer_json, answer_text, create_views
from operations.stored.rows import GroupRows, StateTable, rows_of
from operations.stored.text import group_text, table_text, time_text
from state.kafka.group import ConfigsOnly
from streaming.query.storage import storage_at
from streaming.service.stored_state import moving
from streaming.service.stored_state.moving import StoredState, read_stored
from streaming.service.stored_state.rollback import back_up, continue_from, roll_back


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@data_dir_option("The coordinator must not run.")
@servers_option("to count the requests that are not handled yet")
def export_(file: Path, data_dir: Path, client_config: ClientConfig | None) -> None:
    """Write the state of a coordinator that is stopped into a new FILE."""
    folder = ServiceFolder(coordinator_folder(data_dir))
    checkpoint = Checkpoint.at(folder.path)
    with folder.locked() as lock:
        with cluster_or_embedded(data_dir, client_config) as servers:
            header = moving.header_of(checkpoint, servers)
        with spark_session(folder.path / "spark.log", lock) as spark:
            groups = moving.export_state(checkpoint, spark, header, file)
    show(f"exported {groups} groups to {file}")
    if header.unread is None:
        show("requests that are not handled yet: not counted, no broker was given")
    else:
        counts = (f"{count} in partition {partition}" for partition, count in sorted(header.unread.items()))
        show(f"requests that are not handled yet: {', '.join(counts)}")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Data folder for `run`. It must not have the folder of a coordinator.",
)
@click.option("--shards", type=SHARDS, help="Shards of each partition of requests, a power of two.")
@STATE_PARTITIONS
@click.option("--request-partitions", type=WholeNumber(1), help="Partitions of requests; needs --prefix.")
@click.option("--prefix", help="Prefix of new topics. Every request of the old ones must have been handled.")
@click.option(
    "--old-data-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="For a backup: the data folder from which it was made. Its coordinator must not run. Requests "
    "that it has answered since then are handled again, with the same answers.",
)
@servers_option("to find what was answered, if the plan of the last batch in --old-data-dir is damaged")
def import_(
    file: Path, data_dir: Path, old_data_dir: Path | None, client_config: ClientConfig | None, **changes: Any
) -> None:
    """Make a coordinator's folder from FILE, which `state export` or `state backup` wrote."""
    target = data_dir / "coordinator"
    with ExitStack() as stack:
        export = ExportFile(file)
        continuation, continued_at_ms = None, None
        if old_data_dir is not None:
            old = ServiceFolder(coordinator_folder(old_data_dir))
            stack.enter_context(old.locked())
            open_cluster = partial(cluster_or_embedded, old_data_dir, client_config)
            continuation, continued_at_ms = continue_from(
                export.header, Checkpoint.at(old.path), open_cluster
            )
        identity = moving.identity_for(export.header, continued_at_ms=continued_at_ms, **changes)
        moving.import_state(
            export, target, identity, partial(spark_session, data_dir / "import.log"), continuation
        )
    show(
        f"imported {export.line_count} groups into {target}: {identity.request_partitions} partitions of "
        f"{identity.requests_topic}, {identity.shards} shards of each"
    )


@click.command()
@click.option(
    "--to-batch",
    type=WholeNumber(0),
    help="The committed batch to go back to. Default: the newest intact one.",
)
@data_dir_option("Neither the coordinator nor a standby may run.")
@CHECKPOINT_OPTION
@servers_option("to find what was answered, if the plan of the last batch is damaged")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="New folder for the checkpoint as it was, on the same file system. Default: beside the checkpoint.",
)
def rollback(
    to_batch: int | None,
    data_dir: Path,
    location: str | None,
    client_config: ClientConfig | None,
    keep: Path | None,
) -> None:
    """Roll a stopped coordinator's state back to an earlier batch.

    At the next start, the requests since then run again as one batch, with the same answers.
    """
    folder = ServiceFolder(coordinator_folder(data_dir))
    path = storage_at(location or str(folder.path)).path
    if path is None:
        raise UserFacingError(
            f"{location} is not in a folder of this machine. Copy it to one, roll it back, and copy it back"
        )
    with folder.locked() as lock:
        outcome = roll_back(
            Checkpoint.at(path),
            keep or path / f"rolled-back-{datetime.fromtimestamp(time.time(), UTC):%Y%m%dT%H%M%SZ}",
            lambda: spark_session(data_dir / "state.log", lock),
            to_batch=to_batch,
            cluster=lambda: cluster_or_embedded(data_dir, client_config),
        )
    show(f"{path} is back at batch {outcome.batch}, with {outcome.groups} groups")
    if outcome.last > outcome.batch:
        show(
            f"the next start handles the requests of batches {outcome.batch + 1} to {outcome.last} again, "
            f"as batch {outcome.batch + 1}"
        )
    show(f"the checkpoint as it was: {outcome.kept} ({outcome.removed} files are not used any more)")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@data_dir_option("The coordinator may run.")
@checkpoint_options
def backup(file: Path, data_dir: Path, location: str | None, spark: Mapping[str, str]) -> None:
    """Write the state of the newest committed batch into a new FILE. `state import` reads it."""
    with open_checkpoint(data_dir, location, spark) as (checkpoint, session):
        header, groups = back_up(checkpoint, session, file)
    show(f"wrote {groups} groups, the state after batch {header.batch}, to {file}")


@click.command()
@data_dir_option("The coordinator may run.")
@checkpoint_options
@click.option("--batch", type=WholeNumber(0), help="The state after this batch. Default: the newest one.")
@click.option("--group", "groups", multiple=True, help="Only this group. Can be given several times.")
@click.option(
    "--what", type=click.Choice([str(table) for table in StateTable]), help="Only this table, of all groups."
)
@click.option(
    "--format", "output", type=click.Choice(["table", "jsonl", "json"]), default="table", show_default=True
)
@click.option("--sql", metavar="QUERY", help="Run a query of Spark SQL over the tables, and print its rows.")
def read(
    data_dir: Path,
    location: str | None,
    spark: Mapping[str, str],
    batch: int | None,
    groups: tuple[str, ...],
    what: str | None,
    output: str,
    sql: str | None,
) -> None:
    """Print the groups as they are in the coordinator's checkpoint."""
    if what is not None and sql is not None:
        raise click.UsageError("--what and --sql exclude each other")
    with open_checkpoint(data_dir, location, spark) as (checkpoint, session):
        state = read_stored(checkpoint, session, batch)
        if sql is not None:
            _print_query(session, state, groups, sql, output)
            return
    _print(state, groups, None if what is None else StateTable(what), output)


def _rows(state: StoredState, groups: Collection[str]) -> Iterator[GroupRows]:
    """Yield the rows of the named groups, or of all groups if `groups` is empty, by group id."""
    config = state.config
    for exported in sorted(state.groups, key=lambda group: group.group_id):
        if not groups or exported.group_id in groups:
            group = exported.decode()
            # An id that has only settings is not a group.
            if not isinstance(group, ConfigsOnly):
                yield rows_of(group, exported.version, config)


def _print(state: StoredState, groups: Collection[str], what: StateTable | None, output: str) -> None:
    group_rows = list(_rows(state, groups))
    rows: list[Any] = group_rows if what is None else [row for group in group_rows for row in group.of(what)]
    if output == "jsonl":
        for row in rows:
            show_line(row)
    elif output == "json":
        _print_json(state, str(what or StateTable.GROUPS), rows)
    else:
        show(
            f"State after batch {state.batch}, {time_text(state.watermark_ms)} UTC by the log: "
            f"{len(group_rows)} groups"
        )
        blocks = [group_text(row) for row in rows] if what is None else [table_text(what, rows)]
        for block in blocks:
            show(visible_text(["", block]))
    for missing in sorted(set(groups) - {group.group.group_id for group in group_rows}):
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
