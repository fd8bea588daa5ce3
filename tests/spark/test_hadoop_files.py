"""Files through Spark's JVM, here on Hadoop's own local file system. It has every operation that HDFS has."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.files import FolderError, FolderNotWritable
from streaming.query.hadoop_files import HadoopFiles


@pytest.fixture(params=[True, False], ids=["renames", "writes at once"])
def files(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> HadoopFiles:
    return HadoopFiles(lambda: spark, tmp_path.as_uri(), renames=request.param)


def test_a_file_is_written_replaced_listed_and_removed(files: HadoopFiles) -> None:
    assert files.names("owners") == []
    with pytest.raises(FileNotFoundError):
        files.read("owners/1.json")
    files.write("owners/1.json", b"one")
    files.write("owners/1.json", bytes(range(256)))
    assert files.read("owners/1.json") == bytes(range(256))
    assert files.names("owners") == ["1.json"]
    files.remove("owners/1.json")
    files.remove("owners/1.json")
    assert files.names("owners") == []


def test_a_file_is_created_once(files: HadoopFiles) -> None:
    assert files.create("identity.json", b"one")
    assert not files.create("identity.json", b"two")
    assert files.read("identity.json") == b"one"
    assert files.names("") == ["identity.json"]


def test_the_check_of_a_place_leaves_nothing(files: HadoopFiles) -> None:
    files.check()
    assert files.names("") == []


def test_a_checkpoint_is_kept_there(files: HadoopFiles) -> None:
    checkpoint = Checkpoint(files)
    checkpoint.own(1)
    epochs = checkpoint.epochs({"group.max.size": 5}, [], "1", after_ms=0)
    assert Checkpoint(files).record().epochs == epochs
    assert checkpoint.last_batch("offsets") == -1


def test_an_error_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = HadoopFiles(lambda: spark, (tmp_path / "file").as_uri(), renames=True)
    with pytest.raises(FolderNotWritable, match=r"file/owners/1\.json cannot be written: "):
        files.write("owners/1.json", b"one")


def test_a_file_system_that_spark_does_not_know_is_named(spark: SparkSession) -> None:
    with pytest.raises(FolderError, match=r'x://host/there cannot be used: .*No FileSystem for scheme "x"'):
        HadoopFiles(lambda: spark, "x://host/there", renames=True)
