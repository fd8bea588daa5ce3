"""A group with epochs, whose target assignment the coordinator computes: what groups of the consumer protocol
(KIP-848) and share groups (KIP-932) have in common.

This file holds data and queries only. The order of the fields is the layout of the stored state. Source:
ModernGroup.java.
"""

from collections.abc import Mapping

from state.kafka.group import Group


class ModernGroup(Group):
    """`group_epoch` grows with each change that asks for a new target assignment. `assignment_epoch` is the
    group epoch that the target was computed for, at `assignment_timestamp_ms` (0: at a time that is not
    known). `metadata_hash` is the fingerprint of the topics that members subscribe to (row HB53), b"" without
    any. `metadata_stale` is True if it has to be computed again.
    """

    group_epoch: int = 1
    assignment_epoch: int = 1
    assignment_timestamp_ms: int = 0
    metadata_hash: bytes = b""
    metadata_stale: bool = True

    @property
    def generation(self) -> int:
        """The group epoch, which takes the place of the classic protocol's generation in the history."""
        return self.group_epoch

    @property
    def is_rebalancing(self) -> bool:
        """Whether members are on their way to a target assignment, or one has to be computed."""
        raise NotImplementedError

    def entry_details(self) -> Mapping[str, object]:
        return {"group_type": self.type_name, "assignment_epoch": self.assignment_epoch}
