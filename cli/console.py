"""The console of the live views: it writes its own control sequences, and escapes those in the shown text."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kafka_why.escaping import visible_lines


class EscapingConsole(Console):
    """A console of rich that escapes all unprintable characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible_lines(segment.text), segment.style)
