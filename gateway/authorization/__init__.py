"""Authorization of clients by Kafka's access control lists (ACLs), checked at the gateway."""
