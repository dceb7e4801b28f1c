"""What people see of a training: its record on disk, progress line, recoveries, goodput and report."""
