"""Which conversions of groups with members are allowed: `group.consumer.migration.policy`. Rows PO1 to PO4.

Source: ConsumerGroupMigrationPolicy.java.
"""

from state.config import MigrationPolicy
from state.kafka.context import StepContext


def allows_upgrade(context: StepContext) -> bool:
    """Whether a classic group with members may become a consumer group."""
    return _policy(context).allows_upgrade


def allows_downgrade(context: StepContext) -> bool:
    """Whether a consumer group with members may become a classic group."""
    return _policy(context).allows_downgrade


def allows_classic_members(context: StepContext) -> bool:
    """Whether classic members may join a consumer group that has members."""
    if context.config.group_consumer_migration_policy is not MigrationPolicy.DISABLED:
        return True
    context.rule("PO4")
    return False


def _policy(context: StepContext) -> MigrationPolicy:
    policy = context.config.group_consumer_migration_policy
    match policy:
        case MigrationPolicy.BIDIRECTIONAL:
            context.rule("PO1")
        case MigrationPolicy.UPGRADE:
            context.rule("PO2")
        case MigrationPolicy.DOWNGRADE:
            context.rule("PO3")
        case MigrationPolicy.DISABLED:
            context.rule("PO4")
    return policy
