"""Names of users in SASL messages."""

_BLANK = "".join(map(chr, range(0x21)))


def trimmed(subject: str) -> str:
    """Return the subject trimmed as by Java's `String.trim`, which removes all characters up to the blank."""
    return subject.strip(_BLANK)


# Possessive, because a name of megabytes would otherwise take memory for each character.
NAME_PATTERN = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)++"


def unescaped(name: str) -> str:
    """Decode a name in a message."""
    return name.replace("=2C", ",").replace("=3D", "=")
