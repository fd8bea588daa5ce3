"""`group-coordinator replay`: replays a group's log, and compares the outcome with what happened."""

import sys
import time

import click

from cli.replay_source import RecordingSource, parse_time, recording_options, reported
from kafka_why.cli.output import configure_logs, show, show_json, show_stderr
from kafka_why.escaping import visible_text
from kafka_why.numbers import is_whole_number, parse_whole_number
from kafka_why.why.wording import Clock
from operations.replay.judge import judge
from operations.replay.moment import moment_text
from operations.replay.read_topics import RecordingPart
from operations.replay.recording import Recording, RecordingHeader
from operations.replay.replay import Replayed, Until
from operations.replay.replay import replay as replay_group
from operations.replay.steps import StepBrowser
from operations.replay.text import start_text, verdict_text
from operations.replay.verdict import ReplayVerdict

NOT_IDENTICAL = 1


@click.command()
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group to replay; repeatable.")
@click.option(
    "--all", "all_groups", is_flag=True, help="Replay all groups of the coordinator or the recording."
)
@click.option("--from-topic", is_flag=True, help="Read the coordinator's topics and checkpoint.")
@recording_options()
@click.option(
    "--until",
    metavar="TIME|DURATION|OFFSET",
    help="Compare what happened until then: a time, a duration ago, or an offset of the requests topic.",
)
@click.option("--at", metavar="TIME|DURATION", help="Show the group as it was then, instead of comparing.")
@click.option("--step", is_flag=True, help="Go through the group's entries one by one, instead of comparing.")
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
def replay(
    source: RecordingSource,
    groups: tuple[str, ...],
    all_groups: bool,
    from_topic: bool,
    until: str | None,
    at: str | None,
    step: bool,
    output: str,
) -> None:
    """Replay a group's log without Spark, and compare the outcome with what the coordinator did.

    Prints "identical", or the differences with exit code 1. --at shows the group at a time, --step goes
    through its requests and deadlines.
    """
    configure_logs()
    if bool(groups) == all_groups:
        raise click.UsageError("takes one of these options: --group, --all")
    if from_topic == (source.file is not None):
        raise click.UsageError("takes one of these options: --from-topic, --from FILE")
    if (at is not None or step) and len(groups) != 1:
        raise click.UsageError("--at and --step take one --group")
    if source.file is not None and source.from_state is not None:
        raise click.UsageError("--from-state needs --from-topic: a recording has its own beginning")
    now_ms = time.time_ns() // 1_000_000
    with reported(), source.recording(RecordingPart(list(groups) or None)) as recording:
        _check_groups(recording.header, groups)
        if at is not None:
            _show_moment(recording, groups[0], parse_time(at, now_ms, "--at"))
        elif step:
            _step(recording, groups[0], _until(until, now_ms))
        else:
            _judge(recording, groups, _until(until, now_ms), output)


def _check_groups(header: RecordingHeader, groups: tuple[str, ...]) -> None:
    missing = [group_id for group_id in groups if not header.wants(group_id)]
    if missing:
        names = ", ".join(header.groups or ())
        raise click.ClickException(f"the recording has no group {missing[0]}; it has {names}")


def _until(text: str | None, now_ms: int) -> Until | None:
    if text is None or not is_whole_number(text):
        return None if text is None else Until(time_ms=parse_time(text, now_ms, "--until"))
    try:
        return Until(offset=parse_whole_number(text))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--until") from error


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
    """Raise ClickException for a group that the log does not have. Most often its name is mistyped."""
    unknown = [group_id for group_id in groups if group_id not in verdict.groups]
    if unknown and not verdict.starts.keys() & set(unknown):
        raise click.ClickException(f"the log has no request of group {unknown[0]}")


def _show_moment(recording: Recording, group_id: str, at_ms: int | None) -> None:
    assert at_ms is not None
    replayed = replay_group(recording, group_id, Until(time_ms=at_ms))
    _check_start(replayed)
    show(moment_text(replayed, at_ms, recording.header.configs.at(at_ms), Clock()))


def _check_start(replayed: Replayed) -> None:
    """Print where the replay begins if that is not the group's beginning. Raise ClickException if there is no
    such place.
    """
    start = replayed.start
    if start.is_cut:
        text = start_text(replayed.group_id, start)
        if start.request is None:
            raise click.ClickException(text)
        show_stderr(f"Note: {text}")


def _step(recording: Recording, group_id: str, until: Until | None) -> None:
    replayed = replay_group(recording, group_id, until, with_states=True)
    _check_start(replayed)
    if not replayed.entries:
        raise click.ClickException(f"the log has no request of group {group_id}")
    steps = StepBrowser(replayed, recording.header.configs, Clock())
    if sys.stdin.isatty() and sys.stdout.isatty():
        from cli.stepping import walk  # rich takes a tenth of a second to import

        walk(steps)
        return
    for number in range(len(steps)):
        show(visible_text(steps.lines(number)))
