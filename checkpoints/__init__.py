"""What outlives a batch and a process: the state row, and what is pinned beside Spark's checkpoint."""
