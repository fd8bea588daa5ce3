"""Who may connect to the gateway."""
