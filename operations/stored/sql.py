"""Queries of Spark SQL over the tables of a state."""

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by

from kafka_why.escaping import VisibleText
from kafka_why.groups.tables import Column, render_table
from operations.stored.frames import write_parquet
from operations.stored.rows import GroupRows, StateTable


def create_views(spark: SparkSession, folder: Path, groups: Iterable[GroupRows]) -> None:
    """Create a temporary view of Spark for each table, from Parquet files written into an existing folder."""
    write_parquet(folder, groups)
    for table in StateTable:
        spark.read.parquet(str(folder / f"{table}.parquet")).createOrReplaceTempView(table)


def answer_text(answer: DataFrame) -> VisibleText:
    """Return the rows of a query as a table. Spark writes the values, so times are in UTC."""
    # By position, because a query may give two columns the same name.
    numbered = answer.toDF(*(f"c{n}" for n in range(len(answer.columns))))
    text = numbered.select([F.col(name).cast("string") for name in numbered.columns])
    columns = [Column(name, 0) for name in answer.columns]
    return render_table(columns, [list(row) for row in text.collect()])


def answer_json(answer: DataFrame) -> list[str]:
    """Return the rows of a query as JSON objects. Times are ISO 8601 in UTC."""
    packed = answer.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}))
    return [row[0] for row in packed.collect()]
