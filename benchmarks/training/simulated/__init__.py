"""Trainings without processes, for schedules of failures by the thousand."""
