"""Lines of brokers' logs about groups: what each says, and the history entries that follow. Pure."""
