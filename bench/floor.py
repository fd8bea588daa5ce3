"""The floor: a Spark query with the same settings that only copies each request to the responses topic.

`python -m bench.floor SERVERS PREFIX FOLDER` runs it until SIGTERM. It prints a line when it is ready.
"""

import json
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from streaming.query.pipeline import read_requests, write_output
from streaming.query.session import Session
from streaming.service.topics import prepare_topics


def main() -> None:
    """Run the query."""
    client_config, prefix, folder = ClientConfig(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    layout = TopicLayout.named(prefix)
    prepare_topics(client_config, layout)
    folder.mkdir(parents=True)
    with Session(log_path=folder / "spark.log", app_name="floor") as session:
        query = start_floor(session.spark, client_config, layout, str(folder / "spark"))
        print(json.dumps({"broker": str(client_config)}), flush=True)
        query.awaitTermination()


def start_floor(
    spark: SparkSession, client_config: ClientConfig, layout: TopicLayout, checkpoint_dir: str
) -> StreamingQuery:
    """Start a stateless query without Python that copies requests, but not clock records (without key)."""
    requests = read_requests(spark, client_config, layout).where(F.col("key").isNotNull())
    copies = requests.select(
        F.lit(layout.responses_topic).alias("topic"), "key", "value", F.lit(0).alias("partition")
    )
    return write_output(copies, "floor", client_config, layout, checkpoint_dir)


if __name__ == "__main__":
    main()
