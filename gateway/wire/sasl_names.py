"""User names as SASL messages write them (RFC 5801, RFC 5802): `=2C` stands for a comma, `=3D` for `=`."""

# Possessive, because a name of megabytes would otherwise take a frame of memory for each character.
NAME_PATTERN = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)++"


def unescaped(name: str) -> str:
    """The name that a message means."""
    return name.replace("=2C", ",").replace("=3D", "=")
