"""What a client may do: Kafka's access control lists (ACLs), checked at the gateway."""
