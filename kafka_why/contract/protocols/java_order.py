"""The order of Java's strings."""


def java_order(text: str) -> bytes:
    """Return a sort key for the order of Java's String.compareTo, which compares UTF-16 units.

    Python compares code points. The two orders differ beyond U+FFFF. A member id can hold such characters,
    because it starts with the client.id, which is any text. Java and Python leaders of one group must agree.
    """
    return text.encode("utf-16-be", "surrogatepass")
