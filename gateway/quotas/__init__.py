"""How often clients may request something of the coordinator, and connect."""
