"""Makes the seed of a replica: the state after the newest committed batch."""

from kafka import TopicPartition
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, KnownOutage
from kafka_why.connections.client_config import ClientConfig
from kafka_why.local_files import FolderError
from kafka_why.topic_reader import TopicReader
from streaming.query.seeding import read_state
from streaming.replica.seed import Seed, ShardRow
from streaming.service.stored_state.reading import kept_batches


def make_seed(
    checkpoint: Checkpoint,
    spark: SparkSession,
    client_config: ClientConfig,
    epochs: list[Epoch],
    outages: list[KnownOutage],
) -> Seed:
    """Read the state after the newest committed batch, while the query may go on.

    Raises PySparkException or FileNotFoundError if Spark removes the batch meanwhile. Raises FolderError and
    KafkaError.
    """
    if not epochs:
        raise FolderError(f"{checkpoint} has no configuration yet")
    identity = checkpoint.identity()
    batch = max(kept_batches(checkpoint), default=-1)
    rows = [] if batch < 0 else [ShardRow(*row) for row in read_state(spark, checkpoint.spark_uri, batch)]
    ends = dict(checkpoint.planned_ends(batch, identity.requests_topic))
    if not ends:
        ends = _beginnings(client_config, identity.requests_topic, identity.request_partitions)
    return Seed(
        identity=identity,
        batch=batch,
        ends=ends,
        epochs=epochs,
        outages=outages,
        rows=rows,
    )


def _beginnings(client_config: ClientConfig, topic: str, partitions: int) -> dict[int, int]:
    with TopicReader(client_config) as reader:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return {place.partition: offset for place, offset in reader.beginnings(places).items()}
