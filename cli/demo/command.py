"""`group-coordinator demo`: groups that rebalance while consumers and the coordinator are killed."""

import shutil
import signal
import tempfile
import time
from pathlib import Path

import click
from kafka.errors import KafkaError

from cli.demo.story import Demo, RocketMqDemo
from kafka_why.cli.output import show, show_stderr
from kafka_why.errors import UserFacingError
from kafka_why.wording import visible_lines, visible_text


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for checkpoint, broker data and logs; default: a temporary one, kept after a failure.",
)
@click.option(
    "--rocketmq", is_flag=True, help="Play RocketMQ's story. Its first run fetches RocketMQ's jars (100 MB)."
)
def demo(data_dir: Path | None, rocketmq: bool) -> None:
    """Play a story of a few minutes, and check its outcome.

    Unmodified Kafka consumers join, die, and leave; the coordinator is killed in the middle of a rebalance,
    and continues. With --rocketmq, the consumers of RocketMQ's quick start come and go, and two of them have
    the same client id. The exit code is 0 if every check holds.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the children, as Ctrl-C does
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.UsageError(f"{data_dir} is not empty; the demo needs an empty folder")
    folder = data_dir or Path(tempfile.mkdtemp(prefix="group-coordinator-demo-"))
    ok = False
    try:
        ok = _play(RocketMqDemo(folder) if rocketmq else Demo(folder))
    finally:
        if ok and data_dir is None:
            shutil.rmtree(folder)
        else:
            show(visible_text(["", f"Logs and data are in {folder}"]))
    raise SystemExit(0 if ok else 1)


def _play(story: Demo | RocketMqDemo) -> bool:
    started_s = time.monotonic()
    try:
        checks = story.play()
    except (UserFacingError, KafkaError, OSError) as error:
        show_stderr(visible_lines(f"\nThe demo could not continue: {error}".expandtabs()))
        return False
    ok = all(check.ok for check in checks)
    verdict = "All checks passed" if ok else "Some checks FAILED"
    check_lines = [f"  {'ok  ' if check.ok else 'FAIL'}  {check.claim} ({check.finding})" for check in checks]
    conclusion = f"{verdict}, in {time.monotonic() - started_s:.0f} s."
    show(visible_text(["", "The checks:", "", *check_lines, "", conclusion]))
    return ok
