"""The runs as a picture: the lanes of `why --plot`, what happened above and each experiment below."""

from pathlib import Path

from insight.whatif.answer import Answer
from insight.why.clock import Clock
from insight.why.plot import Panel, draw_panels
from insight.why.report import lanes_of


def draw(found: Answer, path: Path, clock: Clock) -> None:
    """Write a PNG. A run in which no client ever joined has no panel. Raises OSError."""
    panels = [
        Panel(judged.report, *lanes_of(judged.run.history()), title=judged.outcome.name)
        for judged in (found.recorded, *found.tried)
        if judged.report is not None
    ]
    draw_panels(panels, path, clock)
