"""Resilient steps inside of training loops that belong to other libraries. Each module needs that library."""
