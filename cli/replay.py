"""`group-coordinator record` writes what happened to groups to a file. `replay` replays a group's log and
compares the outcome with what happened. The options that select a recording are here, too.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from checkpoints.checkpoint import Checkpoint
from checkpoints.sealed_file import ExportFile
from cli.coordinator_parameters import CHECKPOINT_LOCATION, cluster_or_embedded, data_dir_option
from kafka_why.cli.output import show, show_json, show_stderr
from kafka_why.cli.parameters import MOMENT, Command, ParsedOption, as_object, cluster_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from kafka_why.now import now_ms
from kafka_why.numbers import is_whole_number, parse_whole_number
from kafka_why.topic_reader import layout_on
from kafka_why.wording import Clock, parse_since, visible_text
from operations.replay import read_topics
from operations.replay.judge import judge
from operations.replay.moment import moment_text
from operations.replay.read_topics import RecordingPart, temporary_recording
from operations.replay.recording import Recording, RecordingFile, RecordingHeader
from operations.replay.replay import Replayed, Until
from operations.replay.replay import replay as replay_group
from operations.replay.steps import StepBrowser
from operations.replay.text import ReplayVerdict, start_text, verdict_text
from records.topic_sizes import with_topic_sizes
from streaming.query.storage import storage_at

_REQUESTS_TOPIC_SUFFIX = "-requests"
_OPTIONS = (
    data_dir_option("The coordinator may run.", exists=False),
    click.option(
        "--checkpoint",
        type=CHECKPOINT_LOCATION,
        help="The path or URI of the checkpoint, as given to `run`. Default: it is in the data folder.",
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
    """A coordinator's topics and checkpoint."""

    data_dir: Path
    checkpoint: str | None
    client_config: ClientConfig | None
    from_state: Path | None  # an export of the state at the beginning of the recording

    def open_export(self) -> ExportFile | None:
        """Open the export in `from_state`, or return None. Raises UserFacingError."""
        return None if self.from_state is None else ExportFile(self.from_state)

    @contextmanager
    def coordinator(self) -> Iterator[tuple[ClientConfig, TopicLayout, Checkpoint]]:
        """Yield the cluster, the topics and the checkpoint of the coordinator."""
        with (
            _opened_checkpoint(self.data_dir, self.checkpoint) as checkpoint,
            cluster_or_embedded(self.data_dir, self.client_config) as servers,
        ):
            if servers is None:
                raise UserFacingError(f"{self.data_dir} has no embedded broker: give --bootstrap-servers")
            prefix = checkpoint.identity().requests_topic.removesuffix(_REQUESTS_TOPIC_SUFFIX)
            yield servers, with_topic_sizes(servers, layout_on(servers, prefix)), checkpoint


@dataclass(frozen=True, kw_only=True)
class RecordingSource(CoordinatorSource):
    """A recording in `file` or, without `file`, a recording that is made now of a coordinator's topics."""

    file: Path | None

    @contextmanager
    def recording(self, part: RecordingPart) -> Iterator[Recording]:
        """Yield the recording in `file`, or record this part of the coordinator's topics and yield that."""
        if self.file is not None:
            yield RecordingFile(self.file)
            return
        export = self.open_export()
        with (
            self.coordinator() as (servers, layout, checkpoint),
            temporary_recording(servers, layout, checkpoint, part, export) as recording,
        ):
            yield recording


def recording_options(default: str | None = None) -> Callable[[Command], Command]:
    """Add the options of a RecordingSource. The command gets it as `source`.

    `default` says what is read without `--from`.
    """
    option = click.option(
        "--from",
        "file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        metavar="FILE",
        help="Read a recording that `record` made." + (f" Default: {default}." if default else ""),
    )
    return as_object(RecordingSource, "source", option, *_OPTIONS)


@contextmanager
def _opened_checkpoint(data_dir: Path, checkpoint: str | None) -> Iterator[Checkpoint]:
    storage = storage_at(checkpoint or str(data_dir / "coordinator"))
    if storage.path is not None:
        yield Checkpoint.at(storage.path)
        return
    # The checkpoint is in a store such as HDFS, which is read through Spark.
    from streaming.query.session import Session  # imports Spark, which takes a second

    with Session(log_path=data_dir / "record.log", app_name="group-coordinator record") as session:
        yield Checkpoint(storage.open(lambda: session.spark))


def _parse_until(text: str) -> Until:
    """Parse an offset (a whole number), a time, or a duration before now."""
    if is_whole_number(text):
        return Until(offset=parse_whole_number(text))
    return Until(time_ms=parse_since(text, now_ms()))


NOT_IDENTICAL = 1  # the exit code


@click.command()
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group to replay; repeatable.")
@click.option(
    "--all", "all_groups", is_flag=True, help="Replay all groups of the coordinator or the recording."
)
@click.option("--from-topic", is_flag=True, help="Read the coordinator's topics and checkpoint.")
@recording_options()
@click.option(
    "--until",
    type=ParsedOption("TIME|DURATION|OFFSET", _parse_until),
    help="Compare what happened until then: a time, a duration ago, or an offset of the requests topic.",
)
@click.option("--at", type=MOMENT, help="Show the group as it was then, instead of comparing.")
@click.option("--step", is_flag=True, help="Go through the group's entries one by one, instead of comparing.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
def replay(
    source: RecordingSource,
    groups: tuple[str, ...],
    all_groups: bool,
    from_topic: bool,
    until: Until | None,
    at: int | None,
    step: bool,
    output: str,
) -> None:
    """Replay a group's log without Spark, and compare the outcome with what the coordinator did.

    Prints "identical", or the differences with exit code 1. --at shows the group at a time, --step goes
    through its requests and deadlines.
    """
    if bool(groups) == all_groups:
        raise click.UsageError("takes one of these options: --group, --all")
    if from_topic == (source.file is not None):
        raise click.UsageError("takes one of these options: --from-topic, --from FILE")
    if (at is not None or step) and len(groups) != 1:
        raise click.UsageError("--at and --step take one --group")
    if source.file is not None and source.from_state is not None:
        raise click.UsageError("--from-state needs --from-topic: a recording has its own beginning")
    with source.recording(RecordingPart(list(groups) or None)) as recording:
        _check_groups(recording.header, groups)
        if at is not None:
            _show_moment(recording, groups[0], at)
        elif step:
            _step_through(recording, groups[0], until)
        else:
            _judge(recording, groups, until, output)


def _check_groups(header: RecordingHeader, groups: tuple[str, ...]) -> None:
    missing = [group_id for group_id in groups if not header.wants(group_id)]
    if missing:
        names = ", ".join(header.groups or ())
        raise click.ClickException(f"the recording has no group {missing[0]}; it has {names}")


def _judge(recording: Recording, groups: tuple[str, ...], until: Until | None, output: str) -> None:
    verdict = judge(recording, until, groups=set(groups) or None)
    _check_judged(verdict, groups)
    if output == "json":
        show_json(verdict)
    else:
        show(verdict_text(verdict, recording.header))
    if not verdict.is_identical:
        sys.exit(NOT_IDENTICAL)


def _check_judged(verdict: ReplayVerdict, groups: tuple[str, ...]) -> None:
    """Raise ClickException if a requested group is not in the log at all, which is often a mistyped name.

    A group in `starts` is in the log, but without the beginning that a replay needs.
    """
    unknown = [group_id for group_id in groups if group_id not in verdict.groups]
    if unknown and not verdict.starts.keys() & set(unknown):
        raise click.ClickException(f"the log has no request of group {unknown[0]}")


def _show_moment(recording: Recording, group_id: str, at_ms: int) -> None:
    replayed = replay_group(recording, group_id, Until(time_ms=at_ms))
    _check_start(replayed)
    show(moment_text(replayed, at_ms, recording.header.configs.at(at_ms), Clock()))


def _check_start(replayed: Replayed) -> None:
    """Print where the replay begins if the log lacks the group's beginning. Raise ClickException if it can
    begin nowhere.
    """
    start = replayed.start
    if start.is_cut:
        text = start_text(replayed.group_id, start)
        if start.request is None:
            raise click.ClickException(text)
        show_stderr(f"Note: {text}")


def _step_through(recording: Recording, group_id: str, until: Until | None) -> None:
    """Let the user browse the group's entries, or print them all unless this runs in a terminal."""
    replayed = replay_group(recording, group_id, until, with_states=True)
    _check_start(replayed)
    if not replayed.steps:
        raise click.ClickException(f"the log has no request of group {group_id}")
    steps = StepBrowser(replayed, recording.header.configs, Clock())
    if sys.stdin.isatty() and sys.stdout.isatty():
        from cli.live_view import browse_steps  # rich takes a tenth of a second to import

        browse_steps(steps)
        return
    for number in range(len(steps)):
        show(visible_text(steps.lines(number)))


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="A group to record; repeatable. Default: all groups.",
)
@click.option("--since", type=MOMENT, help="Leave out requests before this: an ISO time, or 2h, 30m.")
@click.option("--until", type=MOMENT, help="Leave out requests from this time on.")
@as_object(CoordinatorSource, "source", *_OPTIONS)
def record(
    source: CoordinatorSource,
    file: Path,
    groups: tuple[str, ...],
    since: int | None,
    until: int | None,
) -> None:
    """Record what happened to groups into a new FILE (compressed if its name ends with .zst).

    The file has all that `replay` needs: the requests of the groups, the configurations, the outages, and
    what the coordinator answered and wrote. Retention can delete the topics afterwards.

    The file also has the secret from which member ids are made, and the members' own data. Only its owner may
    read it. Give it only to people who may join the groups.
    """
    part = RecordingPart(list(groups) or None, since, until)
    export = source.open_export()
    with source.coordinator() as (servers, layout, checkpoint):
        header = read_topics.record(file, servers, layout, checkpoint, part, export)
    records = sum(header.ends[partition] - begin for partition, begin in header.begins.items())
    what = ", ".join(groups) or "all groups"
    show(f"recorded {what} from {records} records of {layout.requests_topic}: {file}")
    show(f"{file} has the secret of the member ids: only you may read it")
