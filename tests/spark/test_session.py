"""The start of Spark's JVM, and its access to files."""

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from embedded.jars import spark_archive
from kafka_why.local_files import FolderError, FolderNotWritable
from streaming.query.jvm import SOCKET_FOLDER_MAX_BYTES
from streaming.query.storage import HadoopFiles


def test_jvm_maps_the_archive_of_sparks_classes(spark: SparkSession) -> None:
    """`make setup` makes the archive. A JVM that finds it unfit starts without it, and slower."""
    assert spark_archive().exists()
    gateway = SparkContext._gateway
    assert gateway is not None
    assert str(spark_archive()) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Not Spark's archive of it, which each daemon would compile."""
    (found,) = spark.sparkContext.parallelize([0], 1).map(lambda _: pyspark.__file__).collect()
    assert found == pyspark.__file__


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


@pytest.fixture(params=[True, False], ids=["renames", "writes at once"])
def files(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> HadoopFiles:
    return HadoopFiles(lambda: spark, tmp_path.as_uri(), has_atomic_rename=request.param)


def test_files_are_written_replaced_created_once_listed_and_removed(files: HadoopFiles) -> None:
    files.check()
    assert files.names("") == files.names("owners") == [], "the check of a place leaves nothing"
    with pytest.raises(FileNotFoundError):
        files.read("owners/1.json")
    files.write("owners/1.json", b"one")
    files.write("owners/1.json", bytes(range(256)))
    assert (files.names("owners"), files.read("owners/1.json")) == (["1.json"], bytes(range(256)))
    files.remove("owners/1.json")
    files.remove("owners/1.json")
    assert [files.create("identity.json", content) for content in (b"one", b"two")] == [True, False]
    assert (files.names("owners"), files.read("identity.json")) == ([], b"one")


def test_write_error_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = HadoopFiles(lambda: spark, (tmp_path / "file").as_uri(), has_atomic_rename=True)
    with pytest.raises(FolderNotWritable, match=r"file/owners/1\.json cannot be written: "):
        files.write("owners/1.json", b"one")


def test_file_system_unknown_to_spark_is_named_in_the_error(spark: SparkSession) -> None:
    with pytest.raises(FolderError, match=r'x://host/there cannot be used: .*No FileSystem for scheme "x"'):
        HadoopFiles(lambda: spark, "x://host/there", has_atomic_rename=True)
