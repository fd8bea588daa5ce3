"""Requests of share groups (KIP-932) to a gateway in front of a stub broker."""

from typing import Any

from kafka.protocol.api_key import ApiKey

from tests.harness.gateway import DELETE_GROUPS, LIST, GatewayFixture, RawClient, topic_id

HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92
SOFTWARE = {"client_software_name": "me", "client_software_version": "1"}


async def finds_share_groups(world: GatewayFixture, level: int = 1) -> RawClient:
    """Return a client of a gateway that knows the level of the brokers' feature `share.version`."""
    versions = {HEARTBEAT: 1, DESCRIBE: 1, FETCH: 2, ACKNOWLEDGE: 2, OFFSETS: 1, LIST: 5, DELETE_GROUPS: 2}
    versions[84] = 0  # ReadShareGroupState
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [
            {"api_key": key, "min_version": 0, "max_version": last} for key, last in versions.items()
        ],
        **features(level),
    }
    first_client = await world.client()
    (broker,) = (await first_client.ask(ApiKey.Metadata, 12, topics=[])).brokers
    client = await world.client(broker.port)
    await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
    world.broker.passed.clear()
    return client


def features(level: int) -> dict[str, Any]:
    """Return the features in ApiVersions of a broker with this level of `share.version`."""
    levels = {"min_version_level": level, "max_version_level": level}
    return {"finalized_features": [{"name": "share.version", **levels}]}


def beat(group_id: str = "g", names: list[str] | None = None) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "member_id": "m",
        "member_epoch": 0,
        "rack_id": None,
        "subscribed_topic_names": names,
    }


def fetched(
    *topics: str,
    epoch: int = 0,
    member_id: str = "m",
    group_id: str = "g",
    offsets: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return the fields of a ShareFetch. It acknowledges `offsets` (first and last) if they are given."""
    batches = []
    if offsets is not None:
        batches.append({"first_offset": offsets[0], "last_offset": offsets[1], "acknowledge_types": [1]})
    partitions = [{"partition_index": 0, "acknowledgement_batches": batches}]
    return {
        "group_id": group_id,
        "member_id": member_id,
        "share_session_epoch": epoch,
        "topics": [{"topic_id": topic_id(name), "partitions": partitions} for name in topics],
    }


def listed(*groups: tuple[str, str]) -> dict[str, Any]:
    return {
        "groups": [
            {"group_id": group, "protocol_type": kind, "group_type": kind, "group_state": "Empty"}
            for group, kind in groups
        ]
    }


def error_of(answer: Any) -> int:
    return int(answer.groups[0].error_code if hasattr(answer, "groups") else answer.error_code)
