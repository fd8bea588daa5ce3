"""`group-coordinator state read`: the state in the checkpoint, also while the coordinator runs."""

import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from pyspark.sql import SparkSession

from cli.data_folder import data_dir_option
from cli.state.common import opened, place_options, reported
from kafka_why.cli.output import configure_logs, show, show_encoded, show_json, show_line, show_stderr
from kafka_why.cli.parameters import WholeNumber
from kafka_why.escaping import visible_text
from kafka_why.local_files import make_private_folder
from operations.stored.frames import write_parquet
from operations.stored.rows import GroupRows, StateTable, rows_of
from operations.stored.sql import answer_json, answer_text, create_views
from operations.stored.text import group_text, table_text, time_text
from state.kafka.group import ConfigsOnly
from streaming.service.stored_state.reading import StoredState, read_stored


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
