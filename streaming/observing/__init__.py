"""The query that observes groups of the cluster's own coordinator, from `__consumer_offsets`."""
