"""What stands on the topics: requests, responses, history entries, views, and which partition holds them."""
