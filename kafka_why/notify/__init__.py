"""Tells webhooks which groups rebalanced, and what is wrong with groups and with the coordinator."""
