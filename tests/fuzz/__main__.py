"""A campaign: frames from a seed, each read by the gateway and by Kafka.

python -m tests.fuzz --seed 1 --frames 1000000
"""

import sys
import time
from collections.abc import Iterator
from itertools import islice
from random import Random

import click

from tests.fuzz.frames import APIS, Frames
from tests.fuzz.judge import Finding, Judge
from tests.harness.kafkas_reader import kafkas_reader

BATCH = 2_000
_SHOWN_MAX = 20


def frames(seed: int) -> Iterator[bytes]:
    """Yield the frames of a seed, without end."""
    made = Frames(Random(seed))
    while True:
        yield made.next()


def campaign(judge: Judge, seed: int, count: int, end_s: float = float("inf")) -> list[Finding]:
    """Judge so many frames of the seed, fewer if `end_s` of the monotonic clock comes before."""
    source, found = frames(seed), list[Finding]()
    while count > 0 and time.monotonic() < end_s:
        batch = list(islice(source, min(BATCH, count)))
        found += judge.findings(batch)
        count -= len(batch)
    return found


@click.command()
@click.option("--seed", default=1, show_default=True)
@click.option("--frames", "count", default=1_000_000, show_default=True)
@click.option("--seconds", default=float("inf"), help="End after this time.")
def main(seed: int, count: int, seconds: float) -> None:
    """Compare the gateway's reading of hostile frames with Kafka's."""
    began_s = time.monotonic()
    with kafkas_reader() as kafka:
        judge = Judge(kafka)
        found = campaign(judge, seed, count, began_s + seconds)
    taken_s = time.monotonic() - began_s
    for name, number in judge.counts.items():
        click.echo(f"{number:10,} {name}")
    click.echo(f"{len(judge.passed):10,} of {len(APIS)} versions of APIs with a request that may pass")
    click.echo(f"seed {seed}, {taken_s:.0f} s, {len(found)} findings")
    for finding in found[:_SHOWN_MAX]:
        click.echo(f"{finding.why}: {finding.message[:400].hex()}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
