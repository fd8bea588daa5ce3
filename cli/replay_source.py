"""The sources of `record`, `replay` and `whatif`: their options, and the recording that they select."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from checkpoints.checkpoint import Checkpoint
from checkpoints.export_file import ExportFile
from cli.coordinator_parameters import PLACE
from cli.data_folder import cluster, data_dir_option, reported_as
from kafka_why.cli.parameters import Command, as_object, cluster_options, with_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import ClientError, layout_on
from kafka_why.why.wording import parse_since
from operations.replay.read_topics import CannotRecord, RecordingPart, recorded
from operations.replay.recording import Recording
from operations.replay.recording_file import RecordingError, RecordingFile
from records.topic_sizes import with_topic_sizes
from streaming.query.storage import storage_at

_TOPIC_ENDING = "-requests"
_ERRORS = (CannotRecord, ClientError, RecordingError)
_OPTIONS = (
    data_dir_option("The coordinator may run.", exists=False),
    click.option(
        "--checkpoint",
        type=PLACE,
        help="The path or URI of the checkpoint, as `run` has it. Default: it is in the data folder.",
    ),
    cluster_options(
        "The cluster with the coordinator's topics. Default: the data folder's embedded broker, "
        "which is started for this.",
        required=False,
    ),
    click.option(
        "--from-state",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="EXPORT",
        help="Begin with the groups of this export of the state (`state export`), if the beginning of the "
        "log is gone.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class CoordinatorSource:
    """A coordinator's topics and checkpoint, and the export with which a recording of them begins."""

    data_dir: Path
    checkpoint: str | None
    client_config: ClientConfig | None
    from_state: Path | None

    def start(self) -> ExportFile | None:
        """Return the export to begin with. Raises ExportError."""
        return None if self.from_state is None else ExportFile(self.from_state)

    @contextmanager
    def coordinator(self) -> Iterator[tuple[ClientConfig, TopicLayout, Checkpoint]]:
        """Yield the cluster, the topics and the checkpoint of the coordinator."""
        with (
            _opened_checkpoint(self.data_dir, self.checkpoint) as checkpoint,
            cluster(self.data_dir, self.client_config) as servers,
        ):
            if servers is None:
                raise CannotRecord(f"{self.data_dir} has no embedded broker: give --bootstrap-servers")
            prefix = checkpoint.identity().requests_topic.removesuffix(_TOPIC_ENDING)
            yield servers, with_topic_sizes(servers, layout_on(servers, prefix)), checkpoint


@dataclass(frozen=True, kw_only=True)
class RecordingSource(CoordinatorSource):
    """A recording in a `file`, or the coordinator from which one is made now."""

    file: Path | None

    @contextmanager
    def recording(self, part: RecordingPart) -> Iterator[Recording]:
        """Yield the recording in the file, or else a recording of this part of the topics."""
        if self.file is not None:
            yield RecordingFile(self.file)
            return
        start = self.start()
        with self.coordinator() as coordinator, recorded(*coordinator, part, start) as recording:
            yield recording


def source_options(command: Command) -> Command:
    """Add the options that name a coordinator's topics and checkpoint. The command gets them as `source`, a
    CoordinatorSource.
    """
    return with_options(as_object(CoordinatorSource, "source")(command), *_OPTIONS)


def recording_options(default: str | None = None) -> Callable[[Command], Command]:
    """Add `--from` and the options of `source_options`. The command gets them as `source`, a RecordingSource.
    `default` says what is read without `--from`.
    """
    option = click.option(
        "--from",
        "file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="Read a recording that `record` made." + (f" Default: {default}." if default else ""),
    )
    return lambda command: with_options(as_object(RecordingSource, "source")(command), option, *_OPTIONS)


def reported() -> AbstractContextManager[None]:
    """Turn the known errors into one sentence and exit code 1."""
    return reported_as(click.ClickException, *_ERRORS)


@contextmanager
def _opened_checkpoint(data_dir: Path, checkpoint: str | None) -> Iterator[Checkpoint]:
    """Yield the checkpoint. Spark is started only if it is not at a path of this machine."""
    storage = storage_at(checkpoint or str(data_dir / "coordinator"))
    if storage.path is not None:
        yield Checkpoint.at(storage.path)
        return
    from streaming.query.session import Session  # imports Spark, which takes a second

    with Session(log_path=data_dir / "record.log", app_name="group-coordinator record") as session:
        yield Checkpoint(storage.open(lambda: session.spark))


def parse_time(text: str | None, now_ms: int, option: str) -> int | None:
    """Parse a time or a duration ago."""
    try:
        return None if text is None else parse_since(text, now_ms)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
