"""A micro-batch of the query: from the requests topic through the stateful operator to the output topics."""
