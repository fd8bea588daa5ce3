"""The output of all commands, and their end by signals.

Ids, names and reasons come from clients, so every command prints through here. Text is escaped even in a file
or pipe, because it is often shown on a terminal later. JSON escapes by its own rules, so every reader gets
the same document. Other data is written unchanged, because a program reads it: CSV for
`reset-offsets --from-file`, a line for `gateway --sasl-users`. On a terminal `GuardedTerminal` escapes it.
"""

import io
import json
import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

import click
import msgspec
import structlog

from kafka_why.wording import visible, visible_lines

if TYPE_CHECKING:
    from kafka_why.stored_log import Progress


_NOT_ASCII = re.compile(r"[^\n -~]")


def show(text: str = "") -> None:
    """Print a line, or the lines of a `VisibleText`, to stdout."""
    click.echo(visible(text))


def show_stderr(text: str) -> None:
    """Print a line, or the lines of a `VisibleText`, to stderr, apart from the requested data."""
    click.echo(visible(text), err=True)


def reading_progress(unit: str) -> "Progress":
    """Return a reporter that shows on a terminal, once a second, how far a long read has got."""
    if not sys.stderr.isatty():
        return lambda *_: None
    next_s = time.monotonic() + 1

    def report(read: int, of: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + 1
            show_stderr(f"{read:,} of {of:,} {unit} read")

    return report


def show_json(answer: Any) -> None:
    """Print the answer as one indented JSON document."""
    show_encoded(msgspec.json.format(msgspec.json.encode(answer), indent=2))


def show_encoded(document: str | bytes) -> None:
    """Print a JSON document that is already encoded."""
    text = document if isinstance(document, str) else document.decode()
    _write_data(f"{_NOT_ASCII.sub(_json_escaped, text)}\n")


def show_line(document: object) -> None:
    """Print a document as one line of JSON."""
    show_encoded(msgspec.json.encode(document))


def show_data(text: str) -> None:
    """Print data in a format other than JSON, unchanged."""
    _write_data(text)


def failure_in_lines(error: Exception) -> click.ClickException:
    """Return a command's error whose message keeps our own line feeds, such as the end of a log."""
    return click.ClickException(visible_lines(str(error).expandtabs()))


def _write_data(text: str) -> None:
    """Write UTF-8 in any locale. Click would remove colours from text."""
    click.echo(text if sys.stdout.isatty() else text.encode(), nl=False)


def _json_escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


# Structured logs on standard error: readable text on a terminal, JSON lines otherwise.


def configure_logs() -> None:
    """Configure structlog for this process, and guard its terminals."""
    guard_terminals()
    # py4j logs a traceback for each call to a JVM that has ended. Our own log reports that end.
    logging.getLogger().addFilter(lambda record: record.module != "java_gateway")
    on_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([_visible] if on_terminal else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _NeverRaises(unguarded(sys.stderr)))),
    )


def _visible(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in the values. JSON output escapes them itself."""
    return {
        key: (visible_lines if key == "exception" else visible)(
            value if isinstance(value, str) else repr(value)
        )
        for key, value in event.items()
    }


class _NeverRaises:
    """A stream that ignores write errors: a full disk must not end a thread that logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


_CONTROL = re.compile(r"[^\n\t -~]+")


class GuardedTerminal(io.TextIOBase):
    """A terminal's stream that escapes unprintable characters except line feeds and tabs.

    It has no `buffer`, because that would accept unescaped bytes.
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
    """Return the stream behind the guard, for a writer that escapes values itself and adds styles."""
    return stream.terminal if isinstance(stream, GuardedTerminal) else stream


# The effect of Ctrl-C and SIGTERM on a command that runs until it is stopped.


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_on_signals() -> None:
    """Exit on a signal, with the code 128 + its number.

    For use during the start: it also ends what was started.
    """
    _on_signals(_exit)


def stop_on_signals(stop: threading.Event) -> None:
    """Set `stop` on a signal, so that the command ends in order. For use after the start."""
    _on_signals(lambda *_: stop.set())


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


# A thread that dies of an exception ends the process, because the service has lost a part of itself.


log = structlog.get_logger()


class StopEvent(threading.Event):
    """An event that is set when a command has to end.

    `failure` is the reason, or None if the user ended the command.
    """

    failure: str | None = None

    def fail(self, reason: str) -> None:
        """End the command. Only the first reason is kept, because later ones may be its consequences."""
        self.failure = self.failure or reason
        self.set()


@contextmanager
def watching_threads(on_death: Callable[[str], None]) -> Iterator[None]:
    """Call `on_death` with the reason when a thread ends with an exception. The call is on that thread.

    Threads of libraries count, too: a producer whose sender thread has ended sends nothing.
    """

    def report_death(death: threading.ExceptHookArgs) -> None:
        name = death.thread.name if death.thread is not None else "unknown"
        first_line, _, _ = str(death.exc_value).strip().partition("\n")
        reason = f"the thread {name} ended: {death.exc_type.__name__}: {first_line}"
        try:
            log.error(reason, exc_info=death.exc_value)
        finally:
            on_death(reason)

    before = threading.excepthook
    threading.excepthook = report_death
    try:
        yield
    finally:
        threading.excepthook = before
