"""Files through Spark's JVM, here on Hadoop's own local file system. It has every operation that HDFS has."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kafka_why.local_files import FolderError, FolderNotWritable
from streaming.query.storage import HadoopFiles


@pytest.fixture(params=[True, False], ids=["renames", "writes at once"])
def files(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> HadoopFiles:
    return HadoopFiles(lambda: spark, tmp_path.as_uri(), renames=request.param)


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


def test_an_error_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = HadoopFiles(lambda: spark, (tmp_path / "file").as_uri(), renames=True)
    with pytest.raises(FolderNotWritable, match=r"file/owners/1\.json cannot be written: "):
        files.write("owners/1.json", b"one")


def test_a_file_system_that_spark_does_not_know_is_named(spark: SparkSession) -> None:
    with pytest.raises(FolderError, match=r'x://host/there cannot be used: .*No FileSystem for scheme "x"'):
        HadoopFiles(lambda: spark, "x://host/there", renames=True)
