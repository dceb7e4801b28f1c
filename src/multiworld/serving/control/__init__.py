"""The controller: which replicas there are, which edges stand between them, and who is told to change that."""
