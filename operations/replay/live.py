"""The recording of a coordinator whose topics are still there."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoints.checkpoint import Checkpoint
from checkpoints.export_file import ExportFile
from checkpoints.sealed_file import COMPRESSED
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from operations.replay.read_topics import Part, record
from operations.replay.recording_file import RecordingFile

EVERYTHING = Part()


@contextmanager
def recorded(
    client_config: ClientConfig,
    layout: TopicLayout,
    checkpoint: Checkpoint,
    part: Part = EVERYTHING,
    *,
    code_version: str = "",
    start: ExportFile | None = None,
) -> Iterator[RecordingFile]:
    """A recording in a temporary file, made now. Only this user may read it. Raises as `record` does."""
    with tempfile.TemporaryDirectory(prefix="group-coordinator-recording-") as folder:
        path = Path(folder) / f"recording{COMPRESSED}"
        record(path, client_config, layout, checkpoint, part, code_version, start)
        yield RecordingFile(path)
