"""The coordinator as the gateway sees it: requests to it, and the groups it lists."""
