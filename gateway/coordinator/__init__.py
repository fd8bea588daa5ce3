"""The gateway's view of the coordinator: requests to it, and its groups."""
