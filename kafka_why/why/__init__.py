"""Explains why a group rebalanced: its history as a timeline of rebalances, in text, JSON or a picture."""
