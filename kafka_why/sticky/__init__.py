"""Kafka's sticky assignors: members keep what they own, unless balance forbids it (KIP-54, KIP-429)."""
