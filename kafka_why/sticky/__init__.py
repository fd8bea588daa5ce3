"""Kafka's sticky assignors: members keep what they own, as far as balance allows (KIP-54, KIP-429)."""
