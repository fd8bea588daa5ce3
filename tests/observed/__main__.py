"""`python -m tests.observed --coordinator "Kafka 4.4" --seed 7`."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from tests.campaigns.command import RESULTS, write_option
from tests.campaigns.results import report
from tests.observed.running import Result, campaign
from tests.observed.stage import STAGES, Stage
from tests.observed.stories import STORIES
from tests.observed.table import DOCUMENT, table


@click.command()
@click.option(
    "--coordinator",
    "stages",
    multiple=True,
    type=click.Choice(STAGES),
    default=["Kafka 4.4"],
    show_default=True,
    help="Whose groups; repeatable, one after the other.",
)
@click.option(
    "--story", "stories", multiple=True, type=click.Choice(list(STORIES)), help="Only these; repeatable."
)
@click.option("--seed", type=int, default=1, show_default=True, help="The order of the stories.")
@click.option(
    "--together", type=click.IntRange(1), default=2, show_default=True, help="Stories side by side."
)
def main(
    stages: Sequence[str],
    stories: Sequence[str],
    seed: int,
    together: int,
    results: Path | None,
    write: bool,
) -> None:
    """Play groups, and judge what `why` says of them. The exit code is 1 if anything is wrong."""
    chosen = [STORIES[name] for name in stories or STORIES]
    played = (
        campaign(
            Stage(name, Path(tempfile.mkdtemp(prefix="observed-"))), chosen, seed=seed, together=together
        )
        for name in stages
    )
    report(played, Result, table, results=results, document=DOCUMENT if write else None)


main.params += [RESULTS, write_option(DOCUMENT)]

if __name__ == "__main__":
    main()
