"""The mpi channel: large payloads over MPI, one job for all worlds of a process."""
