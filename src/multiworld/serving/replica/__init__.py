"""One replica of a stage: what it executes together, and what it has executed."""
