"""The brokers behind the gateway, and what is known of their cluster."""
