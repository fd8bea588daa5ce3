"""The lag of groups, and the troubles that follow from it: definitions, and the data that they need."""
