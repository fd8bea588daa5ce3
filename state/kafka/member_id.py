"""Ids of new members: Kafka's form, `<prefix>-<uuid>`, but the uuid follows from the request instead of
chance.

The same log then names the same members on every replay, and nobody without the namespace can guess an id.
"""

from uuid import UUID, uuid5


def new_member_id(prefix: str, request_id: str, namespace: str) -> str:
    """The id of the member that request `<topic>-<partition>-<offset>` asks for."""
    return f"{prefix}-{uuid5(UUID(namespace), request_id)}"
