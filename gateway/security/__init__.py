"""Which clients may connect to the gateway."""
