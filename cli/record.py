"""`group-coordinator record`: keeps what happened to groups in a file, for a replay later."""

import time
from pathlib import Path

import click

from cli.replay_source import CoordinatorSource, parse_time, reported, source_options
from kafka_why.cli.output import configure_logs, show
from operations.replay import read_topics
from operations.replay.read_topics import RecordingPart


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="A group to record; repeatable. Default: all groups.",
)
@click.option(
    "--since", metavar="TIME|DURATION", help="Leave out requests before this: an ISO time, or 2h, 30m."
)
@click.option("--until", metavar="TIME|DURATION", help="Leave out requests from this time on.")
@source_options
def record(
    source: CoordinatorSource,
    file: Path,
    groups: tuple[str, ...],
    since: str | None,
    until: str | None,
) -> None:
    """Record what happened to groups into a new FILE (compressed if its name ends with .zst).

    The file has all that `replay` needs: the requests of the groups, the configurations, the outages, and
    what the coordinator answered and wrote. Retention can delete the topics afterwards.

    The file also has the secret from which member ids are made, and the members' own data. Only its owner may
    read it. Give it to nobody who may not join the groups.
    """
    configure_logs()
    now_ms = time.time_ns() // 1_000_000
    part = RecordingPart(
        list(groups) or None, parse_time(since, now_ms, "--since"), parse_time(until, now_ms, "--until")
    )
    with reported():
        start = source.start()
        with source.coordinator() as (servers, layout, checkpoint):
            header = read_topics.record(file, servers, layout, checkpoint, part, start)
    records = sum(header.ends[partition] - begin for partition, begin in header.begins.items())
    what = ", ".join(groups) or "all groups"
    show(f"recorded {what} from {records} records of {layout.requests_topic}: {file}")
    show(f"{file} has the secret of the member ids: only you may read it")
