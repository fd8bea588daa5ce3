"""The rules of streams groups (KIP-1071): membership, topology and tasks."""
