"""The names of topics. Source: org.apache.kafka.common.internals.Topic."""

import re

KAFKAS_INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))

_NAME_MAX_CHARS = 249
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_NAME_MAX_CHARS}}}")


def is_topic_name(name: str) -> bool:
    """Return True if a topic can have this name."""
    return name not in (".", "..") and _NAME.fullmatch(name) is not None
