"""Notifies webhooks of rebalances, and of problems of groups and of the coordinator."""
