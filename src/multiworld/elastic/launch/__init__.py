"""The command, and the functions, that launch a job: from options to the exit status."""
