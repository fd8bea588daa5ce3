"""A guard of the terminal for output that bypasses `output.py`: click's errors, warnings, tracebacks."""

import io
import re
import sys
from typing import TextIO

from kafka_why.escaping import visible

_CONTROL = re.compile(r"[^\n\t -~]+")


class GuardedTerminal(io.TextIOBase):
    """A terminal's stream that escapes unprintable characters except line feeds and tabs.

    It has no `buffer`, so nobody can write bytes to the terminal unescaped.
    """

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal
        # The name by which rich's consoles find the stream for their own control sequences.
        self.rich_proxied_file = terminal

    def write(self, text: str) -> int:
        self.terminal.write(_CONTROL.sub(lambda found: visible(found[0]), text))
        return len(text)

    def flush(self) -> None:
        self.terminal.flush()

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.terminal.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.terminal.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.terminal.errors


def guard_terminals() -> None:
    """Guard standard output and standard error if they are terminals. A second call does nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream.isatty() and not isinstance(stream, GuardedTerminal):
            setattr(sys, name, GuardedTerminal(stream))


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream behind the guard, for a writer that escapes each value and adds its own styles."""
    return stream.terminal if isinstance(stream, GuardedTerminal) else stream
