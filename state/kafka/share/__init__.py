"""The rules of share groups (KIP-932): membership and assignment. The brokers deliver the records."""
