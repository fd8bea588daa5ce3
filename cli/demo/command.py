"""`group-coordinator demo`: a group that rebalances while consumers and the coordinator are killed."""

import json
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType

import click
from kafka.errors import KafkaError

from checkpoints.folder import FolderError
from cli.demo import report
from cli.demo.children import ChildFailed
from cli.demo.proof import Outcome
from cli.demo.rocketmq import RocketMqDemo
from cli.demo.script import RECORDS_PER_S, Demo
from cli.demo.watch import NotSeen
from cli.logs import configure_logs
from clients.pending import ClientError
from embedded.broker import BrokerFailed
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound

DEMOS: dict[str, type[Demo | RocketMqDemo]] = {"kafka": Demo, "rocketmq": RocketMqDemo}
FAILURES = (
    BrokerFailed,
    ChildFailed,
    ClientError,
    FolderError,
    JarsUnavailable,
    JavaNotFound,
    KafkaError,
    NotSeen,
    OSError,
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, and nothing else.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep checkpoint, broker data and logs here; default: a temporary folder, kept if something fails.",
)
@click.option("--records-per-s", type=click.FloatRange(0.1, 1_000), default=RECORDS_PER_S, show_default=True)
@click.option("--protocol", type=click.Choice(list(DEMOS)), default="kafka", show_default=True)
def demo(as_json: bool, data_dir: Path | None, records_per_s: float, protocol: str) -> None:
    """Play a scripted run of a few minutes, and prove that it went well.

    kafka: unmodified Kafka consumers join, die, and leave; the coordinator is killed twice, at the worst
    moments, and goes on.
    rocketmq: consumers share queues out among themselves, are told of each other, die, and fall into the trap
    of a client id that two of them have. The exit code is 0 if every check holds.
    """
    configure_logs()
    signal.signal(signal.SIGTERM, _interrupt)
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.UsageError(f"{data_dir} is not empty: the demo starts from nothing")
    folder = data_dir or Path(tempfile.mkdtemp(prefix="group-coordinator-demo-"))
    ok = False
    try:
        ok = _play(DEMOS[protocol], folder, as_json=as_json, records_per_s=records_per_s)
    finally:
        if ok and data_dir is None:
            shutil.rmtree(folder)
        elif not as_json:
            click.echo(f"\nLogs and data are in {folder}")
    raise SystemExit(0 if ok else 1)


def _play(make: type[Demo | RocketMqDemo], folder: Path, *, as_json: bool, records_per_s: float) -> bool:
    started_s = time.monotonic()
    try:
        outcome = make(folder, _Story(quiet=as_json), records_per_s).play()
    except FAILURES as error:
        if as_json:
            click.echo(json.dumps({"ok": False, "error": str(error), "data_dir": str(folder)}))
        else:
            click.echo(f"\nThe demo could not go on: {error}", err=True)
        return False
    seconds = time.monotonic() - started_s
    if as_json:
        click.echo(json.dumps(report.as_json(outcome, seconds)))
    else:
        _tell(outcome, seconds)
    return outcome.ok


def _tell(outcome: Outcome, seconds: float) -> None:
    click.echo("\nWhat happened, and why: the events topic, with what was done to it (***).")
    click.echo("In brackets, where it is said, is the rule that was followed, a row of docs/rules.md.\n")
    for line in report.timeline_lines(outcome):
        click.echo(line)
    click.echo("\nWhat had to hold:\n")
    for line in report.check_lines(outcome):
        click.echo(line)
    verdict = "Everything held" if outcome.ok else "NOT everything held"
    click.echo(f"\n{verdict}, in {seconds:.0f} s.")


class _Story:
    """Tells each step as it begins, and what happens in it, with the seconds since the start."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started_s = time.monotonic()
        self._steps = 0

    def step(self, text: str) -> None:
        self._steps += 1
        self._echo(f"\n{self._steps}. {text}")

    def fact(self, text: str) -> None:
        self._echo(f"   {time.monotonic() - self._started_s:5.0f} s  {text}")

    def _echo(self, line: str) -> None:
        if not self._quiet:
            click.echo(line)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the demo as Ctrl-C does, with its children."""
    raise KeyboardInterrupt
