"""What serving costs, and what it survives, beside what others make of the same."""
