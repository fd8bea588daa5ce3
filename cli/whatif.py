"""`group-coordinator whatif`: what would have happened to a group under other settings."""

import sys

import click

from cli.replay import RecordingSource, recording_options
from kafka_why.cli.output import show, show_json
from kafka_why.wording import Clock
from operations.replay.read_topics import RecordingPart
from operations.whatif.changes import ASSIGNORS, Changes, parse_changes
from operations.whatif.run import WhatIfError, log_of
from operations.whatif.text import WhatIfAnswer, answer, answer_text, summary

NOT_REPRODUCED = 1  # the exit code


@click.command()
@click.argument("group_id", metavar="GROUP")
@recording_options(default="the coordinator's topics and checkpoint")
@click.option(
    "-c",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the coordinator, of the group or of all clients, by Kafka's name. All -c are one "
    "experiment.",
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
def whatif(
    source: RecordingSource,
    group_id: str,
    settings: tuple[str, ...],
    assignor: str | None,
    tries: tuple[str, ...],
    output: str,
) -> None:
    """Show what would have happened to GROUP under other settings, from its recorded log.

    The clients are found in the log: when each ran, how fast it reacted, when it paused. They run against the
    coordinator's core, without Spark, in a closed loop. They first run under the recorded settings; if that
    does not reproduce what happened, the command says by how much and compares nothing (exit code 1).
    """
    if source.from_state is not None:
        raise click.UsageError("whatif takes no --from-state, because it finds the clients in the whole log")
    experiments = _parse_experiments(settings, assignor, tries)
    with source.recording(RecordingPart([group_id])) as recording:
        result = answer(log_of(recording, group_id), experiments)
    _show(result, output)
    if result.validation.objections:
        sys.exit(NOT_REPRODUCED)


def _parse_experiments(
    settings: tuple[str, ...], assignor: str | None, tries: tuple[str, ...]
) -> list[Changes]:
    """Return the experiment of -c and --assignor, if given, and one for each --try. Raises UsageError."""
    first = [*settings, f"{ASSIGNORS}={assignor}"] if assignor else [*settings]
    texts = [*([first] if first else []), *(text.split() for text in tries)]
    try:
        return [parse_changes(text) for text in texts]
    except WhatIfError as error:
        raise click.UsageError(str(error)) from error


def _show(result: WhatIfAnswer, output: str) -> None:
    if output == "json":
        show_json(summary(result))
    else:
        show(answer_text(result, Clock()))
