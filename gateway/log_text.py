"""Clients' data for log lines: short, and on one line whatever it contains."""

TEXT_MAX_CHARS = 64


def quoted(text: str | bytes) -> str:
    """The beginning of the text in quotes, all but printable ASCII escaped. A cut text has its length."""
    shown = ascii(text[:TEXT_MAX_CHARS])
    if len(text) <= TEXT_MAX_CHARS:
        return shown
    return f"{shown}... ({len(text)} {'characters' if isinstance(text, str) else 'bytes'})"
