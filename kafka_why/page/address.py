"""The parameters in an address of the page. An invalid one is refused if it is required or a time. Any other
falls back to its default.
"""

from starlette.requests import Request

from kafka_why.numbers import parse_whole_number
from kafka_why.page.members import MEMBER_SORTS, MemberGrouping, MembersSelection
from kafka_why.page.overview import SORTS, GroupSelection
from kafka_why.wording import parse_since

MAX_TEXT_CHARS = 32_767
"""Maximum length of a parameter. A group id is at most this long."""
_MAX_TIME_CHARS = 64
_MAX_TIME_MS = 10**15 - 1
_MAX_PAGE = 999_999


class RequestRefused(Exception):
    """The error of a request that cannot be answered. Its message is for the reader."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parameter(request: Request, name: str) -> str:
    """Return a required parameter. Raises RequestRefused."""
    value = request.query_params.get(name)
    if not value or len(value) > MAX_TEXT_CHARS:
        raise RequestRefused(400, f"the address has no {name}, or one that is too long")
    return value


def time_parameter(request: Request) -> int:
    """Return the required parameter `at`, in milliseconds since the epoch. Raises RequestRefused."""
    try:
        return _time_ms(parameter(request, "at"))
    except ValueError as error:
        raise RequestRefused(400, "`at` is a time in milliseconds") from error


def group_selection(request: Request) -> GroupSelection:
    """Return the filter and order of groups that the address asks for."""
    query = request.query_params
    return GroupSelection(
        text=query.get("q", "")[:MAX_TEXT_CHARS],
        state=query.get("state", ""),
        protocol=query.get("protocol", ""),
        sort=query.get("sort", SORTS[0]),
        page=_page_number(request),
    )


def members_selection(request: Request) -> MembersSelection:
    """Return the filter and order of clients or hosts that the address asks for."""
    query = request.query_params
    return MembersSelection(
        by=MemberGrouping.HOST if query.get("by") == MemberGrouping.HOST else MemberGrouping.CLIENT,
        text=query.get("q", "")[:MAX_TEXT_CHARS],
        sort=query.get("sort", MEMBER_SORTS[0]),
        page=_page_number(request),
    )


def limits_ms(request: Request, now_ms: int) -> tuple[int, int]:
    """Return the time range that the reader wants to see, by default the last hour. Raises RequestRefused.

    The parameters are `from` and `to` in milliseconds, or `since` as in `why`.
    """
    query = request.query_params
    try:
        to_ms = min(_time_ms(query["to"]), now_ms) if "to" in query else now_ms
        since = query.get("since", "1h")[:_MAX_TIME_CHARS]
        from_ms = _time_ms(query["from"]) if "from" in query else parse_since(since, now_ms)
    except ValueError as error:
        raise RequestRefused(400, f"a time cannot be read: {error}") from error
    if not 0 <= from_ms < to_ms:
        raise RequestRefused(400, "the beginning of the time range is not before its end")
    return from_ms, to_ms


def is_only_time(request: Request) -> bool:
    """Return True if the page's script requests only the parts of the page that depend on the time range."""
    return request.query_params.get("part") == "time"


def _page_number(request: Request) -> int:
    """Return the parameter `page`, or 1 if it is missing or invalid."""
    try:
        return parse_whole_number(request.query_params.get("page", "1"), 1, _MAX_PAGE)
    except ValueError:
        return 1


def _time_ms(text: str) -> int:
    return parse_whole_number(text, 0, _MAX_TIME_MS)
