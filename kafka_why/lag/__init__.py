"""The lag of groups and the troubles that follow from it: the definitions, and the data that these need."""
