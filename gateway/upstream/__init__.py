"""The brokers behind the gateway, and their cluster's metadata."""
