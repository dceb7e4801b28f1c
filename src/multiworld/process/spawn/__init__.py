"""Start workers: a server that forks them, and what a forked process does until a program runs in it."""
