"""Which storage a place is, and how Spark writes a checkpoint there."""

from pathlib import Path

import pytest

from streaming.query.storage import FILE_CONTEXT, FILE_SYSTEM, storage_at


@pytest.mark.parametrize("place", ["data/checkpoint", "/mnt/shared", "file:///mnt/shared", "C:x"])
def test_path_is_written_as_a_file_uri(place: str) -> None:
    storage = storage_at(place)
    assert storage.path == Path(place.removeprefix("file://"))
    assert (storage.file_manager, storage.has_atomic_rename) == (FILE_SYSTEM, False)


@pytest.mark.parametrize(
    "place", ["hdfs://name-node:8020/coordinator/", "hdfs:///c", "abfss://c@a.example/x"]
)
def test_a_file_system_with_a_name_node_renames_in_one_step(place: str) -> None:
    storage = storage_at(place)
    assert (storage.path, storage.uri) == (None, place.rstrip("/"))
    assert (storage.file_manager, storage.has_atomic_rename) == (FILE_CONTEXT, True)


@pytest.mark.parametrize("place", ["s3a://bucket/coordinator", "gs://bucket/coordinator"])
def test_object_store_has_no_atomic_rename(place: str) -> None:
    storage = storage_at(place)
    assert (storage.path, storage.file_manager) == (None, FILE_SYSTEM)
    assert not storage.has_atomic_rename


@pytest.mark.parametrize("place", ["s3a:///coordinator", "file://host/path"])
def test_checkpoint_url_without_a_host_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="host"):
        storage_at(place)
