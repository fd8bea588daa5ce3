"""What clients send, as it stands in a log line: short, and in one line whatever it holds."""

TEXT_MAX_CHARS = 64


def quoted(text: str | bytes) -> str:
    """The beginning of the text in quotes, all but printable ASCII escaped; its length where it is cut."""
    shown = ascii(text[:TEXT_MAX_CHARS])
    if len(text) <= TEXT_MAX_CHARS:
        return shown
    return f"{shown}... ({len(text)} {'characters' if isinstance(text, str) else 'bytes'})"
