"""Names of users in SASL messages."""

_BLANK = "".join(map(chr, range(0x21)))


def trimmed(subject: str) -> str:
    """Return the subject without what Java's `String.trim` takes from both ends: all up to the blank."""
    return subject.strip(_BLANK)


# Possessive, because a name of megabytes would otherwise take a frame of memory for each character.
NAME_PATTERN = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)++"


def unescaped(name: str) -> str:
    """Return the name that a message means."""
    return name.replace("=2C", ",").replace("=3D", "=")
