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

from checkpoints.files import FolderError
from cli.demo import report
from cli.demo.proof import DemoResult
from cli.demo.rocketmq import RocketMqDemo
from cli.demo.script import RECORDS_PER_S, Demo
from cli.demo.watch import NotSeen
from cli.logs import configure_logs
from cli.output import show, show_encoded, tell
from cli.parameters import DecimalNumber
from cli.processes.child import ChildFailed
from clients.pending import ClientError
from embedded.broker import BrokerFailed
from embedded.jars import JarsUnavailable
from embedded.java import JavaNotFound
from insight.visible import visible_lines, visible_text

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
@click.option("--json", "as_json", is_flag=True, help="Print only one JSON object, at the end.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for checkpoint, broker data and logs; default: a temporary one, kept after a failure.",
)
@click.option("--records-per-s", type=DecimalNumber(0.1, 1_000), default=RECORDS_PER_S, show_default=True)
@click.option("--protocol", type=click.Choice(list(DEMOS)), default="kafka", show_default=True)
def demo(as_json: bool, data_dir: Path | None, records_per_s: float, protocol: str) -> None:
    """Run a scripted demo of a few minutes, and check its outcome.

    kafka: unmodified Kafka consumers join, die, and leave; the coordinator is killed twice, at the worst
    moments, and goes on.
    rocketmq: consumers divide queues among themselves, get notifications, die, and fall into the trap of two
    consumers with one client id. The exit code is 0 if every check holds.
    """
    configure_logs()
    signal.signal(signal.SIGTERM, _interrupt)
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.UsageError(f"{data_dir} is not empty; the demo needs an empty folder")
    folder = data_dir or Path(tempfile.mkdtemp(prefix="group-coordinator-demo-"))
    ok = False
    try:
        ok = _play(DEMOS[protocol], folder, as_json=as_json, records_per_s=records_per_s)
    finally:
        if ok and data_dir is None:
            shutil.rmtree(folder)
        elif not as_json:
            show(visible_text(["", f"Logs and data are in {folder}"]))
    raise SystemExit(0 if ok else 1)


def _play(make: type[Demo | RocketMqDemo], folder: Path, *, as_json: bool, records_per_s: float) -> bool:
    started_s = time.monotonic()
    try:
        outcome = make(folder, _Story(quiet=as_json), records_per_s).play()
    except FAILURES as error:
        if as_json:
            show_encoded(json.dumps({"ok": False, "error": str(error), "data_dir": str(folder)}))
        else:
            tell(visible_lines(f"\nThe demo could not go on: {error}".expandtabs()))
        return False
    seconds = time.monotonic() - started_s
    if as_json:
        show_encoded(json.dumps(report.as_json(outcome, seconds)))
    else:
        _print_outcome(outcome, seconds)
    return outcome.ok


def _print_outcome(outcome: DemoResult, seconds: float) -> None:
    verdict = "All checks passed" if outcome.ok else "Some checks FAILED"
    lines = [
        *("", "The history of the events topic, with the demo's own actions (***)."),
        *("The rule in brackets is a row of docs/rules.md.", "", *report.timeline_lines(outcome)),
        *("", "The checks:", "", *report.check_lines(outcome)),
        *("", f"{verdict}, in {seconds:.0f} s."),
    ]
    show(visible_text(lines))


class _Story:
    """Prints each step, and its facts with the seconds since the start. With `quiet` it prints nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started_s = time.monotonic()
        self._steps = 0

    def step(self, text: str) -> None:
        self._steps += 1
        self._show(visible_text(["", f"{self._steps}. {text}"]))

    def fact(self, text: str) -> None:
        self._show(f"   {time.monotonic() - self._started_s:5.0f} s  {text}")

    def _show(self, text: str) -> None:
        if not self._quiet:
            show(text)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """End the demo and its children on SIGTERM, as Ctrl-C does."""
    raise KeyboardInterrupt
