"""What outlives a batch and a process: the state row's codec, and what is pinned beside Spark's checkpoint."""
