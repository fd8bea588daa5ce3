"""The replica: it follows the requests topic and appends the query's answers before the query does."""
