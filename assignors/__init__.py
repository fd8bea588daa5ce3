"""Who gets which partition or queue: pure functions of subscriptions and counts, standard library only."""
