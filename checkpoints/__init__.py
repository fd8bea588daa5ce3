"""The state that outlives a batch and a process: the state row, and the files beside Spark's checkpoint."""
