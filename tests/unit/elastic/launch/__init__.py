"""From a command line to a job."""
