"""The fetch sessions (KIP-227) of one connection whose topics were checked."""

NO_SESSION = 0
_SESSIONS_MAX = 100


class FetchSessions:
    """The fetch sessions (KIP-227) that one connection began, with the version of the ACLs that allowed each.

    A request of a session names only what has changed, so the gateway cannot see what it reads. It passes
    only if this connection began the session, and no ACL has changed since.
    """

    def __init__(self) -> None:
        self._versions: dict[int, int] = {}

    def began(self, session_id: int, version: int) -> None:
        """Remember a session. The oldest is forgotten when there are too many."""
        if session_id != NO_SESSION:
            self._versions.pop(session_id, None)
            self._versions[session_id] = version
            if len(self._versions) > _SESSIONS_MAX:
                del self._versions[next(iter(self._versions))]

    def may_continue(self, session_id: int, version: int) -> bool:
        """Whether a request of the session may pass under this version of the ACLs."""
        return self._versions.get(session_id) == version
