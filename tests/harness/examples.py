"""The number of examples of property tests: the test's own number, times the option ``--examples``."""

from hypothesis import settings

factor = 1.0
"""Set by tests/conftest.py before the tests are imported."""


def scaled(base: int) -> int:
    """Return `base` times the factor, at least one."""
    return max(1, round(base * factor))


def examples(base: int) -> settings:
    """Return the settings of a property test with `base` examples, times the factor."""
    return settings(max_examples=scaled(base))
