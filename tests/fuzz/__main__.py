"""A campaign: frames from a seed, each read by the gateway and by Kafka, or RocketMQ.

python -m tests.fuzz --seed 1 --frames 1000000
python -m tests.fuzz --protocol rocketmq --seed 1 --frames 300000
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from random import Random
from typing import Protocol

import click

from tests.fuzz.frames import APIS, Frames
from tests.fuzz.judge import Finding, Judge
from tests.fuzz.remoting_frames import RemotingFrames
from tests.fuzz.remoting_judge import RemotingJudge
from tests.harness.kafkas_reader import kafkas_reader, rocketmqs_reader

BATCH = 2_000
_SHOWN_MAX = 20


class _Source(Protocol):
    def next(self) -> bytes: ...


class _Judge(Protocol):
    counts: Counter[str]

    def findings(self, messages: Sequence[bytes], /) -> list[Finding]: ...


def campaign(judge: _Judge, source: _Source, count: int, end_s: float = float("inf")) -> Iterator[Finding]:
    """Judge so many frames, fewer if `end_s` of the monotonic clock comes before. Yield what is found."""
    while count > 0 and time.monotonic() < end_s:
        batch = [source.next() for _ in range(min(BATCH, count))]
        yield from judge.findings(batch)
        count -= len(batch)


@click.command()
@click.option("--protocol", type=click.Choice(["kafka", "rocketmq"]), default="kafka", show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--frames", "count", default=1_000_000, show_default=True)
@click.option("--seconds", default=float("inf"), help="End after this time.")
def main(protocol: str, seed: int, count: int, seconds: float) -> None:
    """Compare the gateways' reading of hostile frames with that of Kafka or RocketMQ."""
    began_s = time.monotonic()
    random = Random(seed)
    judge: Judge | RemotingJudge
    with ExitStack() as stack:
        if protocol == "kafka":
            judge = Judge(stack.enter_context(kafkas_reader()))
            found = [*campaign(judge, Frames(random), count, began_s + seconds)]
        else:
            judge = RemotingJudge(stack.enter_context(rocketmqs_reader()))
            found = [*campaign(judge, RemotingFrames(random), count, began_s + seconds)]
    taken_s = time.monotonic() - began_s
    for name, number in judge.counts.items():
        click.echo(f"{number:10,} {name}")
    if isinstance(judge, Judge):
        click.echo(f"{len(judge.passed):10,} of {len(APIS)} versions of APIs with a request that may pass")
    click.echo(f"seed {seed}, {taken_s:.0f} s, {len(found)} findings")
    for finding in found[:_SHOWN_MAX]:
        click.echo(f"{finding.why}: {finding.message[:400].hex()}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
