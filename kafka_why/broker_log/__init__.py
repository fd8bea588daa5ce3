"""Parses the lines of brokers' logs about groups, and derives history entries from them. No IO here."""
