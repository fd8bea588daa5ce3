"""Structured logs on standard error: readable text on a terminal, JSON lines otherwise."""

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

from kafka_why.cli.terminal import guard_terminals, unguarded
from kafka_why.escaping import visible, visible_lines


def configure_logs() -> None:
    """Configure structlog for this process, and guard its terminal."""
    guard_terminals()
    # py4j logs a traceback for calls to a JVM that has ended, which is in our own log with what follows.
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
    """Escape what could change a terminal. In JSON it is escaped anyway."""
    return {
        key: (visible_lines if key == "exception" else visible)(
            value if isinstance(value, str) else repr(value)
        )
        for key, value in event.items()
    }


class _NeverRaises:
    """A stream that drops what cannot be written, because a log line must not end a thread on a full disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()
