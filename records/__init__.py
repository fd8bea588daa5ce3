"""Patterns of topics, the sizes of topics, and what is shortened to fit them."""
