"""The output of all commands, and their reactions to signals.

Ids, names and reasons come from clients, so every command prints through here. Text is escaped even in a file
or pipe, because it is often shown on a terminal later. A JSON document has JSON's own escapes, with which
programs read the original text. Other data is written unchanged, because a program reads it: CSV for
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
from typing import Any, NoReturn, TextIO, cast

import click
import msgspec
import structlog

from kafka_why.wording import visible, visible_lines

_NOT_PRINTABLE_ASCII = re.compile(r"[^\n -~]")  # except line feeds


def show(text: str = "") -> None:
    """Print a line, or the lines of a `VisibleText`, to stdout."""
    click.echo(visible(text))


def show_stderr(text: str) -> None:
    """Print a line, or the lines of a `VisibleText`, to stderr, apart from the requested data."""
    click.echo(visible(text), err=True)


def reading_progress(unit: str) -> Callable[[int, int], None]:
    """Return a function that reports on a terminal, once a second, the progress of a long read.

    Its arguments are the number of `unit` read so far, and the total. Without a terminal it does nothing.
    """
    if not sys.stderr.isatty():
        return lambda *_: None
    next_report_s = time.monotonic() + 1

    def report(read: int, total: int) -> None:
        nonlocal next_report_s
        if time.monotonic() >= next_report_s:
            next_report_s = time.monotonic() + 1
            show_stderr(f"{read:,} of {total:,} {unit} read")

    return report


def show_json(answer: Any) -> None:
    """Print the answer as one indented JSON document."""
    show_encoded(msgspec.json.format(msgspec.json.encode(answer), indent=2))


def show_encoded(document: str | bytes) -> None:
    """Print a JSON document that is already encoded."""
    text = document if isinstance(document, str) else document.decode()
    show_data(f"{_NOT_PRINTABLE_ASCII.sub(_json_escaped, text)}\n")


def show_line(document: object) -> None:
    """Print a document as one line of JSON."""
    show_encoded(msgspec.json.encode(document))


def show_data(text: str) -> None:
    """Print data for programs, unchanged and in UTF-8 in any locale."""
    # Click removes colour codes from a str for a file or pipe, but not from bytes.
    click.echo(text if sys.stdout.isatty() else text.encode(), nl=False)


def _json_escaped(match: re.Match[str]) -> str:
    """Return a character as JSON, with an escape only if it is not printable."""
    character = match[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


def configure_logs() -> None:
    """Log to standard error, as text on a terminal and as JSON lines elsewhere, and guard the terminals."""
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
            *([_escape_values] if on_terminal else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _NeverRaises(unguarded(sys.stderr)))),
    )


def _escape_values(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape control characters in the values of a log event. JSON output escapes them itself."""
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


# Runs of characters that `visible` may have to escape. It leaves printable characters unchanged.
_TO_CHECK = re.compile(r"[^\n\t -~]+")


class GuardedTerminal(io.TextIOBase):
    """A terminal's stream that escapes unprintable characters except line feeds and tabs.

    It has no `buffer`, because that would accept unescaped bytes.
    """

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal
        # The name by which rich's consoles find the stream for their own control sequences.
        self.rich_proxied_file = terminal

    def write(self, text: str) -> int:
        self.terminal.write(_TO_CHECK.sub(lambda run: visible(run[0]), text))
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


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_on_signals() -> None:
    """Exit on a signal, with the code 128 + its number.

    For use during the start: the SystemExit also ends what was started.
    """
    _handle_signals(_raise_exit)


def stop_on_signals(stop: threading.Event) -> None:
    """Set `stop` on a signal, so that the command ends in order. For use after the start."""
    _handle_signals(lambda *_: stop.set())


def _handle_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _raise_exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


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

    The process should then end, because a part of it no longer works. Threads of libraries count, too: a
    producer whose sender thread has ended sends nothing.
    """

    def report_death(death: threading.ExceptHookArgs) -> None:
        name = death.thread.name if death.thread is not None else "unknown"
        first_line, _, _ = str(death.exc_value).strip().partition("\n")
        reason = f"the thread {name} ended: {death.exc_type.__name__}: {first_line}"
        try:
            log.error(reason, exc_info=death.exc_value)
        finally:
            on_death(reason)

    previous_hook = threading.excepthook
    threading.excepthook = report_death
    try:
        yield
    finally:
        threading.excepthook = previous_hook
