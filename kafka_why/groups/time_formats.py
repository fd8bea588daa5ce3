"""Times and durations in the formats of kafka-consumer-groups."""

import re
from datetime import UTC, datetime

_NUMBER = r"[-+]?[0-9]{1,15}"
_DURATION = re.compile(
    rf"(?P<sign>[-+]?)P(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?=[-+\d])(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?"
    rf"(?:(?P<seconds>{_NUMBER})(?:[.,](?P<fraction>\d{{0,9}}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_MAX_DURATION_MS = 10**15
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def parse_datetime_ms(text: str) -> int:
    """Return milliseconds since 1970 from `YYYY-MM-DDTHH:mm:SS.sss`, in UTC unless an offset (`Z`, `+02:00`,
    `+02`) follows.

    Raises ValueError. Source: Utils.getDateTime; unlike there, the milliseconds may be omitted.
    """
    if "T" not in text:
        raise ValueError(f"'{text}' is not a date and time: there is no 'T' between the two")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a date and time like 2026-01-31T18:30:00.000") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000


def parse_duration_ms(text: str) -> int:
    """Return milliseconds from `PnDTnHnMn.nS`; each number, and the whole, may have a sign.

    Raises ValueError. Source: java.time.Duration.parse.
    """
    match = _DURATION.fullmatch(text)
    if match is None or all(match[unit] is None for unit in _UNITS_MS):
        raise ValueError(f"'{text}' is not a duration like P1DT2H30M or PT15M")
    total_ms = sum(int(match[unit] or 0) * unit_ms for unit, unit_ms in _UNITS_MS.items())
    fraction_ms = int((match["fraction"] or "").ljust(3, "0")[:3])
    total_ms += -fraction_ms if (match["seconds"] or "").startswith("-") else fraction_ms
    if abs(total_ms) > _MAX_DURATION_MS:
        raise ValueError(f"'{text}' is a duration of more than 30,000 years")
    return -total_ms if match["sign"] == "-" else total_ms
