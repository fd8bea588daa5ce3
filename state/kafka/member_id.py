"""Ids of new members in Kafka's form, `<prefix>-<uuid>`. The uuid is derived from the request and is not
random.

A replay of the same log assigns the same ids. Without the namespace an id cannot be guessed.
"""

from uuid import UUID, uuid5


def new_member_id(prefix: str, request_id: str, namespace: str) -> str:
    """Return the member id for the request `<topic>-<partition>-<offset>`."""
    return f"{prefix}-{uuid5(UUID(namespace), request_id)}"
