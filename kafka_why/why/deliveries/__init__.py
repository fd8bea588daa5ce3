"""Reports what became of the records of share groups, by what gateways counted: see docs/share-groups.md."""
