"""What is on the topics: requests, responses, history entries, views, and which partition holds them."""
