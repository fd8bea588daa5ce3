"""The looks at patterns that the coordinator asked one connection's members for.

An answer to ConsumerGroupHeartbeat asks for one (`ConsumerGroupHeartbeatResponse.look`), and the member's
next heartbeat on the connection brings it. A look that is forgotten is asked for again after some seconds.
"""

# Clients choose the patterns and the ids, so what a connection remembers is bounded.
_CHARS_MAX = 65_536


class PatternLooks:
    """The pattern to look at, by the group and the member that was asked."""

    def __init__(self) -> None:
        self._patterns: dict[tuple[str, str], str] = {}
        self._chars = 0

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, group_id: str, member_id: str, pattern: str) -> None:
        """Remember a look. The oldest are forgotten when there are too many characters."""
        self.pop(group_id, member_id)
        self._patterns[group_id, member_id] = pattern
        self._chars += len(group_id) + len(member_id) + len(pattern)
        while self._chars > _CHARS_MAX:
            self.pop(*next(iter(self._patterns)))

    def is_asked(self, group_id: str, member_id: str) -> bool:
        """Whether the member's next heartbeat has to bring a look."""
        return (group_id, member_id) in self._patterns

    def pop(self, group_id: str, member_id: str) -> str | None:
        """The pattern to look at for the member, None if it was asked for none. It is forgotten."""
        pattern = self._patterns.pop((group_id, member_id), None)
        if pattern is not None:
            self._chars -= len(group_id) + len(member_id) + len(pattern)
        return pattern
