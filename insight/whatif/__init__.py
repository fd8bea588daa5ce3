"""What if a group had another assignor, a member less, or one more? Computed, without any consumer."""
