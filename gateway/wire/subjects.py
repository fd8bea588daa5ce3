"""The subject of a token, as Kafka reads it."""

_BLANK = "".join(map(chr, range(0x21)))


def trimmed(subject: str) -> str:
    """The subject without what Java's `String.trim` takes from both ends: all up to the blank."""
    return subject.strip(_BLANK)
