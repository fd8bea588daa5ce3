"""The floor: a Spark query with the same settings that only copies each request to the responses topic."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from records.layout import TopicLayout
from streaming.query.pipeline import read_requests, write_output


def start_floor(
    spark: SparkSession, bootstrap_servers: str, layout: TopicLayout, checkpoint_dir: str
) -> StreamingQuery:
    """Start a stateless copy query without Python; it omits clock records, as the real query does."""
    requests = read_requests(spark, bootstrap_servers, layout).where(F.col("key").isNotNull())
    echo = requests.select(
        F.lit(layout.responses_topic).alias("topic"), "key", "value", F.lit(0).alias("partition")
    )
    return write_output(echo, "floor", bootstrap_servers, layout, checkpoint_dir)
