"""Which names a topic can have. Source: org.apache.kafka.common.internals.Topic."""

import re

_NAME_MAX_CHARS = 249
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_NAME_MAX_CHARS}}}")


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name. No broker has a topic of another name, and none has to be asked."""
    return name not in (".", "..") and _NAME.fullmatch(name) is not None
