"""Which coordinator the topics belong to: claims, the takeover, the wait of a standby."""
