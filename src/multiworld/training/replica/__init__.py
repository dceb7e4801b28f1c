"""A replica of several processes: they hold one copy of the model together, and fail and return as one."""
