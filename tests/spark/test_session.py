"""How Spark's JVM is started."""

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from embedded.jars import spark_archive
from streaming.query.jvm import SOCKET_FOLDER_MAX_BYTES


def test_jvm_maps_the_archive_of_sparks_classes(spark: SparkSession) -> None:
    """`make setup` makes the archive. A JVM that finds it unfit starts without it, and slower."""
    assert spark_archive().exists()
    gateway = SparkContext._gateway
    assert gateway is not None
    assert str(spark_archive()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


def test_java_accepts_a_socket_in_the_longest_allowed_folder(spark: SparkSession) -> None:
    """In a folder whose name is one byte longer no batch can run."""
    with TemporaryDirectory(dir="/tmp") as short:
        longest = Path(short) / ("x" * (SOCKET_FOLDER_MAX_BYTES - len(short) - 1))
        listen_as_spark(spark, longest)
        with pytest.raises(Py4JJavaError, match="Unix domain path too long"):
            listen_as_spark(spark, longest.with_name(f"{longest.name}x"))


def listen_as_spark(spark: SparkSession, folder: Path) -> None:
    folder.mkdir()
    jvm: Any = spark._jvm
    channel = jvm.java.nio.channels.ServerSocketChannel.open(jvm.java.net.StandardProtocolFamily.UNIX)
    try:
        channel.bind(jvm.java.net.UnixDomainSocketAddress.of(f"{folder}/.{uuid.uuid4()}.sock"))
    finally:
        channel.close()
