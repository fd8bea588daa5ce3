"""The sessions of one connection in which records are fetched, and what was checked of their topics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from gateway.deliveries.member import Member
from gateway.deliveries.service import Deliveries
from gateway.telemetry.members import kafka_uuid
from gateway.wire.fetch_messages import error_of
from gateway.wire.framing import RequestHeader

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


@dataclass(slots=True)
class CheckedTopics:
    """The topics of a share session, and the version of the ACLs that allowed them. The session `lacks` a
    topic that a request named and these ACLs denied.
    """

    topics: set[UUID]
    version: int
    lacks: bool

    def add(self, topics: set[UUID], version: int, *, lacks: bool) -> None:
        """Add the topics of another request, which this version of the ACLs allowed."""
        self.topics |= topics
        self.lacks |= lacks
        self.version = version


class ShareSession:
    """The share session (KIP-932) of one connection: the member, and what was checked of its topics.

    A broker finds a session by the ids of its group and member, whichever connection a request comes from,
    and checks the rights of the gateway's principal. So another client could continue the session, begin it
    anew or end it. Where the gateway checks ACLs, the broker knows the member by `broker_member_id`, a random
    id that no client learns. Then all topics of the session were named, and checked, on this connection.

    A broker binds one session to a connection, and ends it with the connection. The sessions of other members
    on the same connection would live until the broker ends, and a broker has a limit of sessions
    (`group.share.max.share.sessions`). So a connection has one member.

    A request names only the partitions that are new. `checked` are all topics, or None until the broker has
    accepted the latest beginning: it keeps the session of before if it refuses one. `is_doubted`: the broker
    failed at a request, perhaps because a topic of the session is gone.
    """

    def __init__(self) -> None:
        self.member: tuple[str, str] | None = None
        self.broker_member_id = kafka_uuid(uuid4())
        self.checked: CheckedTopics | None = None
        self.is_doubted = False
        self._beginning: CheckedTopics | None = None
        self._counted: tuple[Deliveries, Member] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a member fetches here."""
        return self.member is not None

    def is_of(self, group_id: str, member_id: str) -> bool:
        """Whether the session is this member's. The first one gets it."""
        if self.member is None:
            self.member = group_id, member_id
        return self.member == (group_id, member_id)

    def clear_doubt(self) -> bool:
        """Forget a broker's failure, because the member begins anew. Return True if there was one."""
        was_doubted, self.is_doubted = self.is_doubted, False
        return was_doubted

    def begin(self, topics: CheckedTopics) -> Callable[[bytes], None]:
        """Begin anew with these topics. Return the function that takes the broker's response."""
        self.checked, self._beginning = None, topics

        def saw(response: bytes) -> None:
            if self._beginning is topics and not error_of(response):
                self.checked = topics

        return saw

    def watch(self, deliveries: Deliveries, header: RequestHeader, request: Any) -> Callable[[bytes], object]:
        """Count a request of the member. Returns what takes the parts of the response."""
        assert self.member is not None, "it is known before its requests pass"
        if self._counted is None:
            self._counted = deliveries, deliveries.open(*self.member)
        return self._counted[1].watch(header, request)

    def end(self) -> None:
        """The connection has ended."""
        if self._counted is not None:
            deliveries, member = self._counted
            deliveries.close(member)
