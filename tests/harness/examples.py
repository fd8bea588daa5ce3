"""How many examples tests of random cases try: as many as each says, times the option ``--examples``."""

from hypothesis import settings

factor = 1.0
"""Set by tests/conftest.py before the tests are imported."""


def scaled(base: int) -> int:
    """Return `base` times the factor, at least one."""
    return max(1, round(base * factor))


def examples(base: int) -> settings:
    """Set the number of examples of a property, times the factor."""
    return settings(max_examples=scaled(base))
