"""The earlier state versions that this code reads, and the migration of each to the next. There are none.

A change of a group's layout needs three steps: raise `codec.STATE_VERSION`, copy the structs that change to
this module as they were, and enter the version that they had. Such a copy never changes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Migration(NamedTuple):
    """`groups` is the union of the structs that this version stored. `migrate` makes a group of the next
    version of one of them.
    """

    groups: Any
    migrate: Callable[[Any], Any]


EARLIER: dict[int, Migration] = {}
"""By version, up to the one before `codec.STATE_VERSION`, without a gap."""
