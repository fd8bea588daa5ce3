"""Bounds on what one client, and all clients together, may use of a gateway."""
