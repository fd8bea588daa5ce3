"""Counts of share groups' records that pass the gateway (docs/share-groups.md)."""
