"""Limits on the use of a gateway by one client, and by all clients together."""
