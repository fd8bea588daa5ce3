"""The times without a coordinator: when they began, and when they end."""
