"""One micro-batch: from the requests topic through the stateful operator to the output topics."""
