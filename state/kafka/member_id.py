"""Ids of new members in Kafka's form, `<prefix>-<uuid>`. The uuid is derived from the request and is not
random.

A replay of the same log assigns the same ids. Without the namespace an id cannot be guessed.
"""

from functools import cache
from hashlib import sha1
from uuid import UUID


def new_member_id(prefix: str, request_id: str, namespace: str) -> str:
    """Return the member id for the request `<topic>-<partition>-<offset>`.

    The uuid is that of `uuid.uuid5`, which takes three times the time, because it imports `sha1` at each
    call.
    """
    digest = sha1(_bytes_of(namespace) + request_id.encode(), usedforsecurity=False).digest()
    return f"{prefix}-{UUID(bytes=digest[:16], version=5)}"


@cache
def _bytes_of(namespace: str) -> bytes:
    return UUID(namespace).bytes
