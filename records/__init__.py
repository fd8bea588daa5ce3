"""Topic patterns, limits of topics' sizes, and the shortening of records to fit them."""
