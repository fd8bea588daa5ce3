"""Short names for member ids: `worker-1` instead of `worker-1-4f0c9c1e-...`."""

import re
from collections import Counter
from collections.abc import Iterable

from assignors.kafka.api import MemberId

_UUID = re.compile(r"-([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class Names:
    """Short names for the member ids of one group: the client id or instance id without the UUID behind it.

    If two ids would get the same name, the first eight digits of the UUID are kept.
    """

    def __init__(self, member_ids: Iterable[MemberId]) -> None:
        ids = sorted(set(member_ids), key=len, reverse=True)
        shared = Counter(_UUID.sub("", member_id) for member_id in ids)
        self._names = {
            member_id: _UUID.sub("" if shared[_UUID.sub("", member_id)] == 1 else r"-\1", member_id)
            for member_id in ids
        }
        longest_first = "|".join(re.escape(member_id) for member_id in ids)
        self._anywhere = re.compile(longest_first) if ids else None

    def of(self, member_id: MemberId) -> str:
        """Return the short name; an unknown id is its own name."""
        return self._names.get(member_id, member_id)

    def put_in(self, text: str) -> str:
        """Return the text with names instead of ids."""
        return self._anywhere.sub(lambda found: self.of(found[0]), text) if self._anywhere else text
