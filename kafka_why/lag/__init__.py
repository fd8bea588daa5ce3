"""How far groups are behind, and what hurts: the definitions, once, and what they are found from."""
