"""Authentication of clients at the gateway."""
