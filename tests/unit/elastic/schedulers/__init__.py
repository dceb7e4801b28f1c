"""What schedulers of clusters say and want."""
