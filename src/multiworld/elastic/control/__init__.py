"""Questions about a running job, and what may be asked of it: any agent answers for the coordinator."""
