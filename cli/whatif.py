"""`group-coordinator whatif`: what other settings would have made of a group's recorded time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from cli.logs import configure_logs
from cli.replay_source import (
    code_version,
    layout_of,
    opened_broker,
    opened_checkpoint,
    reported,
    source_options,
)
from insight.replay.live import recorded
from insight.replay.read_topics import Part
from insight.replay.recording import Recording
from insight.replay.recording_file import RecordingFile
from insight.whatif.answer import Answer, answer
from insight.whatif.changes import ASSIGNORS, Changes, parse_changes
from insight.whatif.recorded import log_of
from insight.whatif.run import WhatIfError
from insight.whatif.text import answer_text, summary
from insight.why.clock import Clock

NOT_REPRODUCED = 1


@click.command()
@click.argument("group_id", metavar="GROUP")
@click.option(
    "--from",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Read a recording that `record` made. Default: the coordinator's topics and checkpoint.",
)
@source_options
@click.option(
    "-c",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the coordinator or of all clients, by Kafka's name. All -c make one experiment.",
)
@click.option("--assignor", metavar="NAME[,NAME]", help="The assignors of all clients in that experiment.")
@click.option(
    "--try",
    "tries",
    multiple=True,
    metavar="'NAME=VALUE ...'",
    help="One more experiment, with these settings; repeatable.",
)
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE.png",
    help="Also draw what happened and each experiment, as `why --plot` does.",
)
def whatif(
    group_id: str,
    file: Path | None,
    data_dir: Path,
    checkpoint: str | None,
    bootstrap_servers: str | None,
    from_state: Path | None,
    settings: tuple[str, ...],
    assignor: str | None,
    tries: tuple[str, ...],
    output: str,
    plot: Path | None,
) -> None:
    """Show what other settings would have made of a GROUP's recorded time.

    The clients are found in the log: when each ran, how fast it reacted, when it paused. They run against the
    coordinator's core, without Spark, in a closed loop. They first run under the recorded settings; if that
    does not reproduce what happened, the command says by how much and compares nothing (exit code 1).
    """
    configure_logs()
    if from_state is not None:
        raise click.UsageError("--from-state does not go with whatif: it finds the clients in the whole log")
    experiments = _experiments(settings, assignor, tries)
    with (
        reported(),
        _recording(group_id, file, data_dir, checkpoint, bootstrap_servers) as recording,
    ):
        try:
            found = answer(log_of(recording, group_id), experiments)
        except WhatIfError as error:
            raise click.ClickException(str(error)) from error
    _show(found, output)
    if found.validation.objections:
        sys.exit(NOT_REPRODUCED)
    if plot is not None:
        _plot(found, plot)


@contextmanager
def _recording(
    group_id: str, file: Path | None, data_dir: Path, checkpoint: str | None, bootstrap_servers: str | None
) -> Iterator[Recording]:
    """The recording in a file, or one that is made now."""
    if file is not None:
        yield RecordingFile(file)
        return
    with (
        opened_checkpoint(data_dir, checkpoint) as place,
        opened_broker(data_dir, bootstrap_servers) as servers,
        recorded(
            servers, layout_of(servers, place), place, Part([group_id]), code_version=code_version()
        ) as recording,
    ):
        yield recording


def _experiments(settings: tuple[str, ...], assignor: str | None, tries: tuple[str, ...]) -> list[Changes]:
    first = [*settings, *([f"{ASSIGNORS}={assignor}"] if assignor else [])]
    texts = [*([first] if first else []), *(text.split() for text in tries)]
    try:
        return [parse_changes(text) for text in texts]
    except WhatIfError as error:
        raise click.UsageError(str(error)) from error


def _show(found: Answer, output: str) -> None:
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(summary(found)), indent=2))
    else:
        click.echo(answer_text(found, Clock()), nl=False)


def _plot(found: Answer, path: Path) -> None:
    from insight.whatif.plot import draw  # matplotlib takes a second to import

    try:
        draw(found, path, Clock())
    except OSError as error:
        raise click.ClickException(f"the picture cannot be written: {error}") from error
