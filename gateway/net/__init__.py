"""Connections of clients: listeners, requests in, responses out."""
