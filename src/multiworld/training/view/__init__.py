"""How a training is seen: progress line, timeline of recoveries, goodput, status, report."""
