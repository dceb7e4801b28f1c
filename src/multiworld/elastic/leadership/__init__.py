"""Which agent coordinates a job, how the agents find each other, and what they write to each other."""
