"""The share session (KIP-932) of one connection."""

from uuid import UUID


class ShareSession:
    """The member that fetches on a connection, and what was checked of its session.

    A broker binds one session to a connection, and ends it with the connection. The sessions of other members
    on the same connection would live until the broker ends, and a broker has a limit of sessions
    (`group.share.max.share.sessions`). So a connection has one member.

    A request names only the partitions that are new. `topics` are all that it named, and `version` is that of
    the ACLs that allowed them.
    """

    def __init__(self) -> None:
        self.member: tuple[str, str] | None = None
        self.topics: set[UUID] = set()
        self.version: int | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a member fetches here."""
        return self.member is not None

    def is_of(self, group_id: str, member_id: str) -> bool:
        """Whether the session is this member's. The first one gets it."""
        if self.member is None:
            self.member = group_id, member_id
        return self.member == (group_id, member_id)
