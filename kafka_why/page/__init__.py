"""The page: which group is unwell, and why, in a browser. It reads the topics only, and changes nothing."""
