"""Connections of clients: listeners, bytes in and answers out."""
