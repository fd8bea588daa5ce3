"""Structured logs on standard error: readable text on a terminal, JSON lines otherwise."""

import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog


def configure_logs() -> None:
    """Configure structlog for this process."""
    on_terminal = sys.stderr.isatty()
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _NeverRaises(sys.stderr))),
    )


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
