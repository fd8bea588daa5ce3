"""Metrics that clients push (KIP-714): what may come and how often, how it is read, where it goes."""
