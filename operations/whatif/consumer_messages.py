"""The contents of members' JoinGroups and SyncGroups: subscriptions with owned partitions, and
assignments.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from assignors.kafka.server_side import COORDINATOR_ASSIGNORS, PREFIX
from assignors.kafka.uniform import UniformAssignor
from kafka_why.contract.kafka.requests import JoinGroup, MemberAssignment, Protocol
from kafka_why.contract.kafka.responses import JoinGroupMember
from kafka_why.contract.protocols.subscriptions import (
    HIGHEST_VERSION,
    PROTOCOL_TYPE,
    Assignment,
    Claim,
    MemberSubscription,
    ProtocolError,
    Subscription,
    TopicPartition,
    decode_subscription,
    decode_version,
    encode_assignment,
    encode_cooperative_user_data,
    encode_sticky_user_data,
    encode_subscription,
)
from kafka_why.sticky.api import Assignor
from kafka_why.sticky.assignor import CooperativeStickyAssignor, StickyAssignor
from operations.whatif.run import WhatIfError

LEADERS: Final[Mapping[str, Assignor]] = MappingProxyType({**BROKER_ASSIGNORS, **ASSIGNORS})
"""The assignors that the leader of a simulated group can have."""

KNOWN: Final = (*LEADERS, *COORDINATOR_ASSIGNORS)


def is_cooperative(protocols: Sequence[Protocol]) -> bool:
    """Return True if a consumer with these assignors keeps its partitions while it joins: all are
    cooperative.
    """
    return bool(protocols) and all(_bare(p.name) == CooperativeStickyAssignor.name for p in protocols)


def check_readable(request: JoinGroup) -> None:
    """Raise WhatIfError if the JoinGroup is not that of a consumer whose subscription can be read."""
    if request.protocol_type != PROTOCOL_TYPE:
        raise WhatIfError(
            f"the group's protocol type is {request.protocol_type!r}: what-if is for groups of consumers, "
            "because it reads their subscriptions and makes their assignments"
        )
    for protocol in request.protocols:
        _read(protocol)


def protocols(
    recorded: JoinGroup, assignors: Sequence[str] | None, held: Iterable[TopicPartition], claim: Claim | None
) -> list[Protocol]:
    """Return the protocols of a JoinGroup that is otherwise as the recorded one.

    If `assignors` is None, the member offers the same assignors. `held` are its current partitions, `claim`
    is its last assignment, or None before the first.
    """
    owned = tuple(sorted(held))
    if assignors is None or not recorded.protocols:
        return [_updated(protocol, owned, claim) for protocol in recorded.protocols]
    subscription = _read(recorded.protocols[0])
    plain = Subscription(subscription.topics, rack_id=subscription.rack_id)
    bare = encode_subscription(plain, version=HIGHEST_VERSION)
    return [_updated(Protocol(name, bare), owned, claim) for name in assignors]


def assignments(
    protocol_name: str, members: Sequence[JoinGroupMember], counts: Mapping[str, int]
) -> list[MemberAssignment]:
    """Return the leader's assignment.

    Raises WhatIfError if the assignor is not one that the project implements.
    """
    if protocol_name not in LEADERS:
        raise WhatIfError(
            f"the group's assignor is {protocol_name!r}, whose assignments cannot be computed here; "
            f"known are {', '.join(LEADERS)}"
        )
    subscriptions = {
        m.member_id: MemberSubscription(decode_subscription(m.metadata), m.group_instance_id) for m in members
    }
    wanted = {topic for s in subscriptions.values() for topic in s.subscription.topics}
    known = {topic: count for topic, count in counts.items() if topic in wanted}
    dealt = LEADERS[protocol_name].assign(known, subscriptions)
    return [
        MemberAssignment(member_id, encode_assignment(Assignment(tuple(partitions))))
        for member_id, partitions in dealt.items()
    ]


def _updated(protocol: Protocol, owned: tuple[TopicPartition, ...], claim: Claim | None) -> Protocol:
    """Return the protocol with the metadata of a member that holds `owned`."""
    name = _bare(protocol.name)
    subscription, version = _read(protocol), decode_version(protocol.metadata)
    sends_owned = name == CooperativeStickyAssignor.name
    if name == UniformAssignor.name and claim is not None:
        owned, sends_owned = claim.partitions, True
    user_data = subscription.user_data
    if name == StickyAssignor.name:
        user_data = None if claim is None else encode_sticky_user_data(claim)
    elif name == CooperativeStickyAssignor.name:
        user_data = encode_cooperative_user_data((claim or Claim()).generation_id)
    sends_generation = sends_owned or subscription.generation_id is not None
    updated = replace(
        subscription,
        user_data=user_data,
        owned_partitions=owned if sends_owned else (),
        generation_id=claim.generation_id if claim is not None and sends_generation else None,
    )
    return Protocol(protocol.name, encode_subscription(updated, version=version))


def _read(protocol: Protocol) -> Subscription:
    try:
        return decode_subscription(protocol.metadata)
    except ProtocolError as error:
        raise WhatIfError(f"a member's subscription cannot be read ({protocol.name}): {error}") from error


def _bare(name: str) -> str:
    return name.removeprefix(PREFIX)
