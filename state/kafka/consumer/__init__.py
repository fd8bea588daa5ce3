"""The rules of the consumer protocol (KIP-848), and of classic members in a group of that protocol."""
