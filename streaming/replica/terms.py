"""What decides a replica's answers besides the log."""

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoints.metadata import Epoch, Identity, KnownOutage, configs_of
from kafka_why.contract.layout import TopicLayout
from state.config import CoordinatorConfig
from state.configs import Configs
from state.inputs import Outage
from streaming.replica.pipes import Promote, Start
from streaming.replica.seed import Seed

NO_OWNER = 0
"""The epoch of a standby's replica: no claim has it, and no later owner ends it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """`owner_epoch` is the epoch of the coordinator whose replica this is. `ended_outage` is the outage that
    this coordinator has ended by taking over, or None if it is not known.
    """

    layout: TopicLayout
    shards: int
    configs: Configs
    outages: Sequence[Outage]
    skip: frozenset[str]
    owner_epoch: int
    ended_outage: Outage | None = None


def terms_of(
    identity: Identity,
    epochs: Sequence[Epoch],
    outages: Sequence[KnownOutage],
    layout: TopicLayout,
    owner_epoch: int,
    *,
    has_ended_last: bool = False,
) -> Terms:
    """The terms of a state with these configurations and outages. `has_ended_last`: this owner has ended the
    last outage.
    """
    base = CoordinatorConfig(member_id_namespace=identity.member_id_namespace)
    return Terms(
        layout=layout,
        shards=identity.shards,
        configs=configs_of(epochs, base),
        outages=[known.outage for known in outages],
        skip=frozenset(epochs[-1].skip),
        owner_epoch=owner_epoch,
        ended_outage=outages[-1].outage if outages and has_ended_last else None,
    )


def first_terms(start: Start, seed: Seed) -> Terms:
    """The terms of a replica that starts. A standby does not know who will own the topics, and is no owner
    itself.
    """
    return terms_of(
        seed.identity,
        seed.epochs,
        seed.outages,
        start.layout,
        NO_OWNER if start.stands_by else start.replica.owner_epoch,
    )


def later_terms(start: Start, seed: Seed, promote: Promote) -> Terms:
    """The terms of a standby's replica that is promoted."""
    return terms_of(
        seed.identity,
        promote.epochs,
        promote.outages,
        start.layout,
        promote.replica.owner_epoch,
        has_ended_last=True,
    )
