"""The rows of a state as views of Spark SQL, and the answers to queries over them.

Each table is a view. A time is a timestamp in UTC, and its column has no `_ms`: `committed_at_ms` is
`committed_at`. A duration stays a number, and its column keeps the suffix: `session_timeout_ms`.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by

from kafka_why.wording import Column, VisibleText, render_table
from operations.stored.rows import ROW_OF, AnyRow, GroupRows, StateTable

_TIME = pa.timestamp("ms", tz="UTC")
_DURATIONS = frozenset({"session_timeout_ms", "rebalance_timeout_ms"})
_ROWS_PER_WRITE = 10_000


def create_views(spark: SparkSession, folder: Path, groups: Iterable[GroupRows]) -> None:
    """Create a temporary view of Spark for each table, from Parquet files in an existing folder."""
    with ExitStack() as files:
        writers = {table: _Writer(files, folder / f"{table}.parquet", table) for table in StateTable}
        for group in groups:
            for table, writer in writers.items():
                writer.add(group.of(table))
        for writer in writers.values():
            writer.flush()
    for table in StateTable:
        spark.read.parquet(str(folder / f"{table}.parquet")).createOrReplaceTempView(table)


def schema_of(table: StateTable) -> pa.Schema:
    """Return the columns of a table."""
    row = ROW_OF[table]
    types = get_type_hints(row)
    return pa.schema([_column_field(name, types[name]) for name in row.__struct_fields__])


def column_of(field: str) -> str:
    """Return the column of a field of a row."""
    return field.removesuffix("_ms") if _is_time(field) else field


class _Writer:
    """A writer of the rows of one table into a Parquet file."""

    def __init__(self, files: ExitStack, path: Path, table: StateTable) -> None:
        self._schema = schema_of(table)
        self._fields = ROW_OF[table].__struct_fields__
        self._file = files.enter_context(pq.ParquetWriter(path, self._schema))
        self._rows: list[AnyRow] = []

    def add(self, rows: Iterable[AnyRow]) -> None:
        """Add rows. They are written when there are enough of them, or by `flush`."""
        self._rows.extend(rows)
        if len(self._rows) >= _ROWS_PER_WRITE:
            self.flush()

    def flush(self) -> None:
        """Write the rows that were added. The first call writes the schema, even without rows."""
        columns = [[_cell(getattr(row, name)) for row in self._rows] for name in self._fields]
        self._file.write_table(pa.table(columns, schema=self._schema))
        self._rows.clear()


def _cell(value: Any) -> Any:
    """Return a value for pyarrow, which builds maps from lists of pairs."""
    return list(value.items()) if isinstance(value, Mapping) else value


def _column_field(name: str, annotation: Any) -> pa.Field:
    """Return the column of a row's field with this name and type."""
    is_optional = get_origin(annotation) is UnionType and NoneType in get_args(annotation)
    value_type = get_args(annotation)[0] if is_optional else annotation  # T of `T | None`
    arrow_type = _TIME if _is_time(name) else _arrow_type(value_type)
    return pa.field(column_of(name), arrow_type, nullable=is_optional)


def _is_time(field: str) -> bool:
    """Return True if a field with this name is a time, not a duration."""
    return field.endswith("_ms") and field not in _DURATIONS


def _arrow_type(annotation: Any) -> pa.DataType:
    """Return the type of a column. Strings, also of enums, are the default."""
    arguments = get_args(annotation)
    if get_origin(annotation) is list:
        return pa.list_(_arrow_type(arguments[0]))
    if get_origin(annotation) is dict:
        return pa.map_(_arrow_type(arguments[0]), _arrow_type(arguments[1]))
    if annotation is bool:
        return pa.bool_()
    return pa.int64() if annotation is int else pa.string()


def answer_text(answer: DataFrame) -> VisibleText:
    """Return the rows of a query as a table. Spark formats the values, so times are in UTC."""
    # Number the columns, because a query may give two of them the same name.
    numbered = answer.toDF(*(f"c{n}" for n in range(len(answer.columns))))
    as_text = numbered.select([F.col(name).cast("string") for name in numbered.columns])
    columns = [Column(name, 0) for name in answer.columns]
    return render_table(columns, [list(row) for row in as_text.collect()])


def answer_json(answer: DataFrame) -> list[str]:
    """Return the rows of a query as JSON objects. Times are ISO 8601 in UTC."""
    as_json = answer.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
    return [row[0] for row in as_json.collect()]
