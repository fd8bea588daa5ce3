"""What an operator watches: metrics and Kafka's log sentences, made beside the query, not in it."""
