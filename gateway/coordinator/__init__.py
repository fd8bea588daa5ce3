"""The gateway's view of the coordinator: requests to it, and the groups it lists."""
