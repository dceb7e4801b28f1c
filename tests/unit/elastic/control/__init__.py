"""What operators ask of a job."""
