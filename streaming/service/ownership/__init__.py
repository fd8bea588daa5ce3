"""The ownership of the topics by one coordinator: claims, the takeover, and the wait of a standby."""
