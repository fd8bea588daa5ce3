"""The rules of share groups (KIP-932): membership and assignment. Records stay with the brokers."""
